"""Table 6: parameters, forward FLOPs per token, and training throughput."""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.names import SEVEN, ordered
from analysis.paper import paper_scores
from analysis.rows import one_evaluation_each
from analysis.style import scale_note, tokens
from analysis.tables import Column, Table, write_table

KIND = "throughput"
TITLE = "Parameters, FLOPs and training throughput"
PAPER = "Table 6"
SHOWS = (
    "Parameters without the input embedding, forward FLOPs per token, and training tokens per second on four L40S GPUs. The "
    "recurrent models are fastest; among the softmax models only Transformer (LLaMA) used a tuned kernel, so throughputs "
    "are comparable only as ratios between models with the same kernel."
)
CLAIMS = ()
MODELS = SEVEN

BASE = "transformer_llama"


def summary(rows: pd.DataFrame, meta: dict[str, Any]) -> Table:
    """Training rows, one line per model; throughput also relative to Transformer (LLaMA), as absolute speed is the GPU's."""
    rows = rows[rows["mode"] == "train"]
    if rows.empty:
        raise ValueError("table6_throughput: no rows of mode 'train'; measure training throughput first")
    one_evaluation_each(rows, ["seq_len", "gpu"])
    gpus, lengths = sorted(set(rows["gpu"])), sorted(set(rows["seq_len"]))
    if len(gpus) > 1 or len(lengths) > 1:
        raise ValueError(f"table6_throughput: rows of several settings cannot be compared ({gpus}, lengths {lengths})")
    large = bool(rows["params"].max() >= 1e8)
    columns = [
        Column("params_millions", "Params (M)", 0 if large else 3),
        Column("fwd_gflops_per_token", "Forward GFLOPs/token", 2 if large else 5),
        Column("tokens_per_s", "Throughput (tokens/s)", 0, "higher"),
        Column("relative", "relative to Transformer (LLaMA)", 2, "higher"),
        Column("mfu_percent", "MFU (%)", 1, "higher"),
        Column("peak_memory_gib", "Peak memory (GiB)", 1, "lower"),
    ]
    base = float(rows.loc[rows["model"] == BASE, "tokens_per_s"].mean())  # NaN if it was not measured
    table = {model: _line(rows[rows["model"] == model], base, columns) for model in ordered(rows["model"].unique())}
    paper = {}
    printed = paper_scores("table6_throughput", meta["scale"])
    for model, line in printed.items():
        speed = line["throughput_tokens_per_s"]
        relative = speed / printed[BASE]["throughput_tokens_per_s"]
        paper[model] = [line["params_millions"], line["fwd_flops_per_token"] / 1e9, speed, relative, None, None]
    note = f"{scale_note(meta['scale']).capitalize()}. Measured on {gpus[0]}, context {tokens(lengths[0])}."
    if paper:
        note += " The paper measured on four L40S; it truncates parameters and FLOPs, and so do we."
    if meta.get("note"):
        note += f" {meta['note']}"
    return Table(
        "Parameters, FLOPs and training throughput",
        columns,
        table,
        note,
        {model: paper[model] for model in table if model in paper},
    )


def _line(rows: pd.DataFrame, base: float, columns: list[Column]) -> list[float | None]:
    """Counts are truncated to the printed digits, as in the paper, not rounded."""

    def cut(value: float, column: Column) -> float:
        return math.floor(value * 10**column.decimals) / 10**column.decimals

    def mean(column: str) -> float:
        return float(rows[column].mean())

    speed = mean("tokens_per_s")
    return [
        cut(mean("params") / 1e6, columns[0]),
        cut(mean("fwd_flops_per_token") / 1e9, columns[1]),
        speed,
        speed / base,
        100 * mean("mfu"),
        mean("peak_memory_gib"),
    ]


def render(rows: pd.DataFrame, meta: dict[str, Any], out: Path) -> list[Path]:
    """Write out/tables/table6_throughput.{md,tex,csv}."""
    return write_table(summary(rows, meta), out / "tables" / "table6_throughput")
