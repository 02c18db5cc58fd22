"""The record of the attention kernels' speed, commit by commit, and what was tried: drawn from the rows. No torch, no GPU."""

import subprocess
from pathlib import Path

import pandas as pd

from kernels.benchmark.rows import BASELINE, SHAPE

ROOT = Path(__file__).parents[2]
FILE = ROOT / "results" / "kernels" / "records.md"


def records(rows: pd.DataFrame, attempts: pd.DataFrame) -> str:
    """Markdown: the commits that were measured; per shape, operation, provider and commit, how many times faster than cuDNN's
    softmax attention in the same measuring, median, least and most over the repeats; the attempts."""
    same = ["created", "gpu", "operation", "gates", "dtype", *SHAPE]
    rows = rows[rows.ms_q50.notna()]
    ours = rows[rows.provider.str.startswith("ours") & rows.operation.isin(("forward", "forward+backward"))]
    ours = ours[~ours.provider.str.endswith("pruned") | (ours.gates != "open")]  # open gates leave nothing to prune
    both = ours.merge(rows[rows.provider == BASELINE], on=same, suffixes=("", "_base")).sort_values("created", kind="stable")
    both["ratio"] = both.ms_q50_base / both.ms_q50
    lines = ["# The attention kernels' record, and what was tried", "", "Drawn by `python -m kernels.benchmark --show`.", ""]
    lines += ["| commit | measured | GPU | last change of the kernels |", "|---|---|---|---|"]
    for (commit, gpu), group in both.groupby(["commit", "gpu"], sort=False):
        lines.append(f"| {commit} | {group.created.min()[:10]} | {gpu} | {last_change(str(commit))} |")
    lines += [
        "",
        "Speed over cuDNN's softmax attention in the same measuring: 1 is as fast. Repeats are measurings of one commit; of",
        "more than one the median, the least and the most.",
        "",
        "| B, T, H, D | operation | gates | provider | commit | x cuDNN | repeats |",
        "|---|---|---|---|---|---|---|",
    ]
    for (*shape, operation, gates, provider, _), group in both.groupby([*SHAPE, "operation", "gates", "provider", "gpu"]):
        for commit, repeats in group.groupby("commit", sort=False):
            ratio = repeats.ratio
            spread = f" ({ratio.min():.3f} to {ratio.max():.3f})" if len(ratio) > 1 else ""
            cells = (
                ", ".join(map(str, shape)),
                operation,
                gates,
                provider,
                commit,
                f"{ratio.median():.3f}{spread}",
                len(ratio),
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "## Attempts", "", "Milliseconds on the way, kept or not; each measured once, at 2 x 16,384 tokens.", ""]
    lines += ["| date | GPU | version | kernel | D | ms | expected | outcome |", "|---|---|---|---|---|---|---|---|"]
    for row in attempts.to_dict("records"):
        names = ("gpu", "version", "kernel", "head_dim", "ms", "expected", "outcome")
        lines.append(f"| {row['created'][:10]} | {' | '.join(str(row[name]) for name in names)} |")
    return "\n".join(lines) + "\n"


def last_change(commit: str) -> str:
    """Of the attention kernels as they were at a commit; empty where git does not know it."""
    command = ["git", "log", "-1", "--format=%s", commit.removesuffix("+"), "--", "kernels/forgetting_attention"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip().replace("|", "/")
