"""Table 3: what each part of the blocks is worth, in perplexity at the training context length."""

from pathlib import Path

import numpy as np

from analysis.curves import LossCurve, log_perplexity, loss_curves
from analysis.paper import paper_scores, read
from analysis.study import Study
from analysis.style import scale_note, tokens
from analysis.tables import Cell, Column, Table, over_seeds, write_table

PRINTED = read("table3_ablation_360m.csv")
"""The paper's table, whose order of lines is ours."""

PARTS = {
    "rope": "RoPE",
    "forget_gate": "forget gate",
    "qk_norm": "QK-norm",
    "output_gate": "output gate",
    "output_norm": "output norm",
    "kv_shift": "KV-shift",
}


def ablations(study: Study) -> dict[str, LossCurve]:
    """The curves that are stored, by label, in the paper's order; labels that it does not have come last."""
    curves = {curve.label: curve for curve in loss_curves(study) if curve.length >= curve.train_len}
    order = [*(label for label in PRINTED if label in curves), *(label for label in curves if label not in PRINTED)]
    return {label: curves[label] for label in order}


def parts_of(model: dict) -> list[float]:
    """1 or 0 for each of PARTS, from the model's spec."""
    has = {
        "rope": model.get("use_rope", False),
        "forget_gate": model.get("forget_gate", "full") != "none",
        "qk_norm": model.get("qk_norm", False),
        "output_gate": model.get("use_output_gate", False),
        "output_norm": model.get("use_output_norm", False),
        "kv_shift": model.get("use_k_shift", False) or model.get("use_v_shift", False),
    }
    return [float(has[part]) for part in PARTS]


def summary(study: Study) -> Table:
    """The table; differences to FoX (Pro) in percent of its perplexity, so that orders can be compared between scales."""
    curves = ablations(study)
    if not curves:
        raise ValueError(f"{study.stem}: no per-token losses up to the training length are stored; run its experiment first")
    logs_S = {label: log_perplexity(curve.losses_SN)[:, curve.train_len - 1] for label, curve in curves.items()}
    base = logs_S["FoX (Pro)"].mean() if "FoX (Pro)" in logs_S else None
    columns = [Column(part, title, 0, style="check") for part, title in PARTS.items()]
    columns += [
        Column("ppl", f"P({tokens(study.train_len)})", 2, "lower"),
        Column("over_fox_pro_percent", "over FoX (Pro), %", 1, style="signed"),
        Column("over_fox_pro_percent_paper", "the same in the paper (360M), %", 1, style="signed"),
    ]
    values: dict[str, list[Cell]] = {}
    for label, curve in curves.items():
        over = None if base is None else 100 * np.expm1(logs_S[label] - base)
        paper = 100 * (PRINTED[label]["ppl"] / PRINTED["FoX (Pro)"]["ppl"] - 1) if label in PRINTED else None
        values[label] = [*parts_of(study.spec(curve.run_ids[0])["model"]), np.exp(logs_S[label]), over, paper]
    note = f"{scale_note(study).capitalize()}. Corpus: {study.corpora}. {_agreement(logs_S)}"
    printed = paper_scores("table3_ablation", "".join(study.scales))
    beside: dict[str, list[float | None]] = {
        label: [*[None] * len(PARTS), printed[label]["ppl"], None, None] for label in values if label in printed
    }
    return over_seeds("Ablations", columns, values, note.strip(), beside)


def _agreement(logs_S: dict[str, np.ndarray]) -> str:
    """Kendall's tau with the paper's order, over the lines that both have."""
    labels = [label for label in logs_S if label in PRINTED]
    ours, papers = [logs_S[label].mean() for label in labels], [PRINTED[label]["ppl"] for label in labels]
    signs = [
        np.sign(ours[one] - ours[two]) * np.sign(papers[one] - papers[two])
        for one in range(len(labels))
        for two in range(one)
        if papers[one] != papers[two]
    ]
    if len(signs) < 3:
        return ""
    same = sum(sign > 0 for sign in signs)
    return (
        f"Of {len(signs)} pairs of lines {same} are in the paper's order (Kendall's \N{GREEK SMALL LETTER TAU} "
        f"{np.mean(signs):.2f})."
    )


def draw(study: Study) -> list[Path]:
    """Write tables/STEM.{md,tex,csv}."""
    return write_table(summary(study), study.folder / "tables" / study.stem)
