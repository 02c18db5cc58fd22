"""Tables and pictures of the kernel benchmarks' rows. Needs no torch and no GPU."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from results.measured import GRADIENTS

PICTURES = Path(__file__).parents[2] / "results" / "kernels"
BASELINE = "softmax cuDNN"
ROPE_BASELINE = "softmax cuDNN + RoPE"
"""Baseline of stick-breaking attention, which needs no position encoding."""
MEMORY_LIMIT = "memory limit"
"""Time of reading keys and values once at the GPU's peak bandwidth, from its memory clock and bus width."""
PASSES, CALLS = ("forward", "forward+backward"), ("one call", "one call+backward")
"""Operations that are timed on the GPU, and from the host, call by call."""
# In the order of columns and bars: softmax attention in greys, the others in colours.
COLORS = {
    "softmax flash-2": "#C4C4C4",
    "softmax flash-2 + RoPE": "#C4C4C4",
    "softmax flash-4": "#9A9A9A",
    BASELINE: "#6E6E6E",
    ROPE_BASELINE: "#6E6E6E",
    "authors": "#009E73",
    "authors, pruned": "#7FD1B9",
    "fla": "#0072B2",
    "ours, deterministic": "#F6C69B",
    "ours": "#E69F00",
    "ours, pruned": "#D55E00",
    "ours, tightly pruned": "#8C3A00",
}
DRAWN = "local to global"
"""Regime of the gates that is drawn."""
SHAPE = ["batch", "seq_len", "num_heads", "head_dim"]
PLACE = ["gpu", "triton"]
"""Columns of a place: only its newest rows are shown; rows of different places are shown side by side."""


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the newest row of every (place, provider, operation, gates, dtype, shape), with `ratio`, its speed relative to
    cuDNN's softmax attention in the same measurement (same date); NaN without one."""
    same = [*PLACE, "date", "operation", "dtype", *SHAPE]
    base = rows[rows.provider.isin((BASELINE, ROPE_BASELINE))].drop_duplicates(same)[[*same, "ms_q50"]]
    joined = rows.merge(base, "left", on=same, suffixes=("", "_base"))
    joined["ratio"] = joined.pop("ms_q50_base") / joined.ms_q50
    joined = joined.sort_values("ms_q50", key=pd.Series.notna, kind="stable")  # an older time wins over a newer NaN
    return joined.drop_duplicates([*PLACE, "provider", "operation", "gates", "dtype", *SHAPE], keep="last")


def by_provider(rows: pd.DataFrame, value: str = "ms_q50", case: Iterable[str] = SHAPE) -> pd.DataFrame:
    """Return the newest values: a line per place and case, a column per provider."""
    index = [*PLACE, *case]
    return rows.drop_duplicates([*index, "provider"], keep="last").pivot(index=index, columns="provider", values=value)


def drawn_place(rows: pd.DataFrame) -> tuple[str, str]:
    """Return the newest Triton and, with it, the GPU with the most providers, as (GPU, Triton)."""
    counts = {(str(gpu), str(triton)): own.provider.nunique() for (gpu, triton), own in rows.groupby(PLACE)}
    return max(counts, key=lambda place: ([int(part) for part in place[1].split(".") if part.isdigit()], counts[place]))


def table(values: pd.DataFrame, form: str = "{:.0f}") -> str:
    """Write a frame as a Markdown table: levels of its index first, then its columns in the order of COLORS."""
    known = [name for name in COLORS if name in values]
    values = values[[*known, *(name for name in values if name not in COLORS)]].dropna(axis="columns", how="all")
    lines = [[*map(str, values.index.names), *map(str, values)], ["---"] * (values.index.nlevels + values.shape[1])]
    for index, *cells in values.itertuples():
        keys = index if isinstance(index, tuple) else (index,)
        lines.append([*map(str, keys), *("" if pd.isna(cell) else form.format(cell) for cell in cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def times_table(rows: pd.DataFrame, operation: str = "forward+backward") -> str:
    """TFLOP/s of the dense computation; milliseconds where no FLOPs are counted."""
    rows = rows[(rows.operation == operation) & rows.provider.isin((*COLORS, MEMORY_LIMIT)) & rows.ms_q50.notna()]
    counted = bool((rows.effective_tflops > 0).all())
    values = by_provider(rows, "effective_tflops" if counted else "ms_q50", [*SHAPE, "gates"])
    return table(values, "{:.0f}" if counted else "{:.4f}")


def times_here(rows: pd.DataFrame) -> str:
    """`times_table` of the plot's place and regime."""
    here = (rows[PLACE] == drawn_place(compared(rows))).all(axis=1) & (rows.gates == DRAWN)
    rows = rows[here & (rows.operation == PASSES[1]) & rows.provider.isin(COLORS)]
    return table(by_provider(rows, "effective_tflops").droplevel(["gpu", "triton"]))


def error_table(rows: pd.DataFrame) -> str:
    """Error against float64 relative to the norm of each quantity: the largest over head sizes and sizes of the logits."""
    newest = rows.drop_duplicates([*PLACE, "provider", "head_dim", "logit", "gates"], keep="last")
    return table(newest.groupby([*PLACE, "gates", "provider"], sort=False)[list(GRADIENTS)].max().sort_index(), "{:.1e}")


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draw the speed of forgetting attention, forward + backward, relative to cuDNN's softmax attention, of one place, shapes
    ordered by length. Draws nothing without cuDNN's rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = rows[(rows.gates == DRAWN) & rows.provider.isin(COLORS) & (rows.operation == PASSES[1])]
    shown = compared(shown).dropna(subset="ratio")
    if shown.empty:
        return
    place = drawn_place(compared(rows))
    ratios = shown[(shown[PLACE] == place).all(axis=1)].pivot(index=SHAPE, columns="provider", values="ratio")
    ratios = ratios[[name for name in COLORS if name in ratios]].sort_index(level=["seq_len", "head_dim"])
    figure, axis = pyplot.subplots(figsize=(11, 4.2))
    ratios.plot.bar(ax=axis, color=[COLORS[str(name)] for name in ratios], width=0.85, rot=0, xlabel="")
    axis.set_ylabel("speed, cuDNN softmax = 1")
    for bars in axis.containers:
        axis.bar_label(bars, fmt="%.2f", fontsize=6)  # type: ignore[arg-type]
    axis.set_xticklabels([f"B{b}  T {t:,}  H{h}  D{d}" for b, t, h, d in ratios.index])
    axis.set_title(f"forward + backward, {place[0]}, Triton {place[1]}, bf16, gates from local to global", fontsize=10)
    axis.legend(fontsize=7, ncols=4, frameon=False)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
