"""The paper's printed tables as data (paper_data/, with their provenance)."""

from functools import cache
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).with_name("paper_data")

# Which file belongs to which artefact at which scale of its runs; at other scales the paper prints nothing comparable.
FILES = {
    ("table1_lm_eval", "760m-48b"): "table1_lm_eval_760m_48b.csv",
    ("table8_lm_eval", "760m-16b"): "table8_lm_eval_760m_16b.csv",
    ("table2_longbench", "760m-48b"): "table2_longbench_760m_48b.csv",
    ("table9_longbench", "760m-16b"): "table9_longbench_760m_16b.csv",
    ("table3_ablation", "360m-7.5b"): "table3_ablation_360m.csv",
    ("table7_slimpajama", "340m-slimpajama"): "table7_slimpajama.csv",
    ("acp_quality", "760m-16b"): "acp_table1_lm_eval_760m_16b.csv",
    ("table6_throughput", "760m-48b"): "table6_throughput_760m.csv",
    ("table6_throughput", "760m-16b"): "table6_throughput_760m.csv",
}

Scores = dict[str, dict[str, float]]  # model's key (of ablations the label) -> column -> value


@cache
def read(name: str) -> Scores:
    """Read a file of paper_data/ as {value of its first column: {other column: value}}."""
    return pd.read_csv(FOLDER / name, index_col=0).astype(float).to_dict("index")  # type: ignore[return-value]


def paper_scores(artefact: str, scale: str) -> Scores:
    """Return the paper's values for an artefact at a scale; empty if it prints none."""
    return read(FILES[artefact, scale]) if (artefact, scale) in FILES else {}
