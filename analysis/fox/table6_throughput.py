"""Table 6: parameters, forward FLOPs per token, and training throughput."""

import math
from pathlib import Path

import pandas as pd

from analysis.names import rank
from analysis.paper import paper_scores
from analysis.study import Study
from analysis.style import scale_note, tokens
from analysis.tables import Column, Table, write_table

KIND = "throughput"
BASE = "transformer_llama"

Line = dict[str, float | None]  # by column


def measured(study: Study) -> pd.DataFrame:
    """Training rows, one line per label, in the paper's order of models: those of the machine, length and kind of step that
    most labels were timed by, of equals the newest. ValueError if there are none."""
    found = study.evaluations(KIND, mode="train")
    if not found:
        raise ValueError(f"{study.stem}: no training throughput is stored; run its experiment first")
    settings: dict[tuple[str, int, str | None], list[tuple[str, str, str]]] = {}
    for line, rows, meta in found:
        setting = rows["machine"].iloc[0], int(rows["seq_len"].iloc[0]), meta["spec"].get("step")
        settings.setdefault(setting, []).append((meta["created"], line.label, meta["eval_id"]))
    alike = max(settings.values(), key=lambda each: (len({label for _, label, _ in each}), max(each)))
    rows = study.rows(KIND, mode="train")
    rows = rows[rows["eval_id"].isin([eval_id for *_, eval_id in alike])]
    rows = rows.drop_duplicates("label")  # a fresh model's speed does not depend on the seed
    return rows.sort_values("model", key=lambda models: models.map(rank), kind="stable", ignore_index=True)


def summary(study: Study) -> Table:
    """One line per label. Only speeds relative to Transformer (LLaMA) are ranked, whose steps alternated with the model's."""
    rows = measured(study)
    large = bool(rows["params"].max() >= 1e8)
    columns = [
        Column("params_millions", "Params (M)", 0 if large else 3),
        Column("fwd_gflops_per_token", "Forward GFLOPs/token", 2 if large else 5),
        Column("tokens_per_s", "Throughput (tokens/s)", 0),
        Column("relative", "relative to Transformer (LLaMA)", 2, "higher"),
        Column("mfu_percent", "MFU (%)", 1),
        Column("mfu_dense_percent", "MFU, pruned work counted (%)", 1),
        Column("peak_memory_gib", "Peak memory (GiB)", 1, "lower"),
    ]
    lines = {row["label"]: _line(row, columns) for row in rows.to_dict("records")}
    ranges: dict[str, dict[str, tuple[float, float]]] = {
        row["label"]: {
            key: (row[f"{key}_low"], row[f"{key}_high"])
            for key in ("tokens_per_s", "relative")
            if not math.isnan(row.get(key, math.nan))
        }
        for row in rows.to_dict("records")
    }
    printed = _printed(study.scale)
    paper = {label: printed[model] for label, model in zip(rows["label"], rows["model"], strict=True) if model in printed}
    note = (
        f"{scale_note(study).capitalize()}. Measured on {rows['machine'].iloc[0]}, context {tokens(rows['seq_len'].iloc[0])},"
    )
    note += " with fresh weights; in square brackets the range of the repetitions. Relative speeds are those of steps that"
    note += " alternated with Transformer (LLaMA)'s in one process; those whose ranges overlap are not ranked."
    note += " Speeds depend on the GPU and its kernels: only ratios between models can be set beside the paper's (four L40S)."
    note += " Counts are truncated as in the paper (which rounds the FLOPs of HGRN2)."
    kept = [column for column in columns if _is_shown(column.key, list(lines.values()))]
    return Table(
        "Parameters, FLOPs and training throughput",
        kept,
        {label: [line[column.key] for column in kept] for label, line in lines.items()},
        note,
        {label: [line.get(column.key) for column in kept] for label, line in paper.items()},
        ranges={label: [own.get(column.key) for column in kept] for label, own in ranges.items()},
    )


def _is_shown(key: str, lines: list[Line]) -> bool:
    """Leaves out what was not measured (a CPU has no peak), and the second MFU where nothing is pruned."""
    known = [value for line in lines if (value := line[key]) is not None and not math.isnan(value)]
    if key == "mfu_dense_percent" and all(line[key] == line["mfu_percent"] for line in lines):
        return False
    return bool(known)


def _line(row: dict, columns: list[Column]) -> Line:
    """One model's values. Counts are truncated to the printed digits, as in the paper, not rounded."""
    counts = {"params_millions": row["params"] / 1e6, "fwd_gflops_per_token": row["fwd_flops_per_token"] / 1e9}
    digits = {column.key: 10**column.decimals for column in columns}
    return {
        **{key: math.floor(count * digits[key]) / digits[key] for key, count in counts.items()},
        "tokens_per_s": row["tokens_per_s"],
        "relative": row.get("relative"),
        "mfu_percent": 100 * row["mfu"],
        "mfu_dense_percent": 100 * row["mfu_dense"],
        "peak_memory_gib": row["peak_memory_gib"],
    }


def _printed(scale: str) -> dict[str, Line]:
    """The paper's values by model."""
    printed = paper_scores("table6_throughput", scale)
    return {
        model: {
            "params_millions": line["params_millions"],
            "fwd_gflops_per_token": line["fwd_flops_per_token"] / 1e9,
            "tokens_per_s": line["throughput_tokens_per_s"],
            "relative": line["throughput_tokens_per_s"] / printed[BASE]["throughput_tokens_per_s"],
        }
        for model, line in printed.items()
    }


def draw(study: Study) -> list[Path]:
    """Write tables/STEM.{md,tex,csv}."""
    return write_table(summary(study), study.folder / "tables" / study.stem)
