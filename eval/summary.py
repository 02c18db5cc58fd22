"""A few lines that say what a result file holds, for the terminal."""

from pathlib import Path

import numpy as np
import pandas as pd

from results.store import read_rows


def summary(path: Path) -> str:
    """The headline numbers of a stored evaluation."""
    rows, meta = read_rows(path)
    head = f"{meta['eval_id']} of {meta['model']} ({meta['scale']}): {path}"
    return "\n".join([head, *_lines(meta["kind"], rows)])


def _lines(kind: str, rows: pd.DataFrame) -> list[str]:
    if kind == "per_token_loss":
        marks = sorted({2**k for k in range(7, 17) if 2**k <= len(rows)} | {len(rows)})
        loss = rows.sort_values("position")["loss"].to_numpy()
        return [f"  perplexity of the first {mark} tokens: {np.exp(loss[:mark].mean()):.3f}" for mark in marks]
    if kind == "needle":
        table = rows.groupby("length")["score"].mean()
        return [f"  length {length}: mean score {score:.2f}" for length, score in table.items()]
    if kind == "longbench":
        table = rows.groupby("task", sort=False)["score"].mean().round(2)
        return [f"  {task}: {score:.2f}" for task, score in table.items()] + [f"  mean of tasks: {table.mean():.2f}"]
    if kind == "lm_eval":
        return [f"  {row.task} {row.metric}: {row.value:.2f} +- {row.stderr:.2f}" for row in rows.itertuples()]
    if kind == "gate_maps":
        table = rows[rows["row"] < 0].groupby("quantity", sort=False)["value"].median()
        return [f"  {quantity}: median over heads {value:.4g}" for quantity, value in table.items()]
    return [
        f"  {row.mode} at {row.seq_len}: {row.tokens_per_s:,.0f} tokens/s, MFU {row.mfu:.3f}, {row.peak_memory_gib:.2f} GiB"
        for row in rows.itertuples()
    ]
