"""Tables and pictures of the kernel benchmarks' rows. Needs no torch and no GPU."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from results.measured import GRADIENTS

PICTURES = Path(__file__).parents[2] / "results" / "kernels"
BASELINE = "softmax cuDNN"
ROPE_BASELINE = "softmax cuDNN + RoPE"
"""Baseline of stick-breaking attention, which needs no position encoding."""
GATE_IN_CHANNELS, CUDNN_GATE = "flash-2, gate in channels", "cuDNN, gate in channels"
"""Unmodified softmax attention, with the sums of the gates in extra channels."""
FLEX = "flex, gate as score_mod"
"""PyTorch's FlexAttention. Rows named "FlexAttention" are of a slower version: a new mask per call, and queries' gradients."""
GATE_AS_BIAS = "flash-4, gate as score_mod"
"""FlashAttention-4 with a bias of its scores, and an extra channel for the gates' gradient."""
MEMORY_LIMIT = "memory limit"
"""Time of reading keys and values once at the GPU's peak bandwidth, from its memory clock and bus width."""
# In the order of the bars: softmax attention in greys, the others in colours.
COLORS = {
    "softmax flash-2": "#C4C4C4",
    "softmax flash-2 + RoPE": "#C4C4C4",
    "softmax flash-4": "#9A9A9A",
    BASELINE: "#6E6E6E",
    ROPE_BASELINE: "#6E6E6E",
    "authors": "#009E73",
    "authors, pruned": "#7FD1B9",
    "fla": "#0072B2",
    "fla, TileLang": "#56B4E9",
    FLEX: "#CC79A7",
    GATE_IN_CHANNELS: "#8E6C8A",
    CUDNN_GATE: "#6A4C68",
    GATE_AS_BIAS: "#4B3B47",
    "ours, deterministic": "#F6C69B",
    "ours": "#E69F00",
    "ours, pruned": "#D55E00",
    "ours, tightly pruned": "#8C3A00",
}
TOO_SLOW = "too slow to compile"
"""Table cell of a provider that exceeded its time limit, and label in place of its bar."""
ALL_BARS, BOX = 0.94, {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
LIMIT_S = 240
PASSES = ("forward", "forward+backward")
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


def table(rows: pd.DataFrame) -> str:
    """Markdown: speed relative to cuDNN's softmax, a column per provider, a line per place, shape, pass and regime."""
    newest = compared(rows[rows.operation.isin(PASSES)]).assign(
        cell=lambda rows: [_cell(*pair) for pair in zip(rows.ms_q50, rows.ratio, strict=True)]
    )
    names = [name for name in COLORS if name in set(newest.provider)]
    lines = []
    for (gpu, triton, *shape, operation, gates), group in newest.groupby([*PLACE, *SHAPE, "operation", "gates"]):
        cells = dict(zip(group.provider, group.cell, strict=True))
        lines.append((gpu, triton, ", ".join(map(str, shape)), operation, gates, *(cells.get(name, "") for name in names)))
    note = "Milliseconds, newest rows."
    if newest.ratio.notna().any():
        base = "for cuDNN itself milliseconds, which are alike in all regimes"
        note = f"Speed relative to cuDNN's softmax attention in the same measurement, newest rows; {base}."
    return f"{note}\n\n{markdown(('GPU', 'Triton', 'B, T, H, D', 'pass', 'regime', *names), lines)}"


def markdown(columns: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Write a table as Markdown."""
    columns = list(columns)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *lines))


def _by_shape(values: pd.DataFrame, names: Iterable[str]) -> str:
    """Markdown: a column per provider, a line per place and shape, empty cells without a value."""
    lines = []
    for (gpu, triton, *shape), *own in values[[*names]].itertuples():
        cells = ("" if pd.isna(value) else f"{value:.1f}" for value in own)
        lines.append((gpu, triton, ", ".join(map(str, shape)), *cells))
    return markdown(("GPU", "Triton", "B, T, H, D", *names), lines)


def _version(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part.isdigit()]


def _cell(ms: float, ratio: float) -> str:
    if pd.isna(ms):
        return TOO_SLOW
    return f"{ms:.3f} ms" if pd.isna(ratio) or ratio == 1.0 else f"{ratio:.2f}"


def decoding_table(rows: pd.DataFrame) -> str:
    """Markdown: microseconds for one token, newest rows, a column per provider, a line per GPU and shape."""
    times = 1000 * by_provider(rows)
    names = [name for name in (*COLORS, MEMORY_LIMIT) if name in times]
    note = (
        "Microseconds for one token over a cache of T keys, in a CUDA graph, newest rows; gates from very local to\n"
        "global over the heads. The memory limit is the time of reading all keys and values, as softmax attention\n"
        "does. Ours can take less: even without pruning it does not read keys that have decayed below e^-2000,\n"
        "whose weight rounds to 0."
    )
    return f"{note}\n\n{_by_shape(times, names)}"


def model_table(rows: pd.DataFrame) -> str:
    """Markdown: thousand tokens per second of training steps, newest rows, a column per backend, a line per place and shape."""
    speeds = by_provider(rows.assign(speed=rows.batch * rows.seq_len / rows.ms_q50), "speed")
    note = "Thousand tokens per second, forward and backward, bf16 autocast, 24 layers, fresh weights, newest rows."
    return f"{note}\n\n{_by_shape(speeds, dict.fromkeys(rows.provider))}"


def error_table(rows: pd.DataFrame) -> str:
    """Markdown: largest error relative to the norm over logits and head sizes, a line per place, gates and provider."""
    newest = rows.drop_duplicates([*PLACE, "provider", "head_dim", "logit", "gates"], keep="last")
    worst = newest.groupby([*PLACE, "gates", "provider"], sort=False)[list(GRADIENTS)].max().sort_index()
    lines = [(*about, *(f"{error:.1e}" for error in errors)) for about, *errors in worst.itertuples()]
    note = (
        "Error against float64, relative to the norm of each quantity: the largest over head sizes and sizes of the logits,\n"
        "newest rows, bf16. With very local gates dq and dk are sums whose terms nearly cancel: 16 bits leave few digits."
    )
    return f"{note}\n\n{markdown(('GPU', 'Triton', 'gates', 'provider', *GRADIENTS), lines)}"


def drawn_place(rows: pd.DataFrame) -> tuple[str, str]:
    """Return the newest Triton and, with it, the GPU with the most providers, as (GPU, Triton)."""
    counts = {(str(gpu), str(triton)): own.provider.nunique() for (gpu, triton), own in rows.groupby(PLACE)}
    return max(counts, key=lambda place: (_version(place[1]), counts[place]))


def draw(rows: pd.DataFrame, path: Path, gates: str, title: str) -> None:
    """Draw bars of the speed relative to cuDNN's softmax attention in the regime `gates`, of one place, one panel per
    operation, shapes ordered by sequence length. Draws nothing without cuDNN's rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = compared(rows[rows.operation.isin(PASSES) & rows.gates.isin((gates, "any"))])
    shown = shown[shown.ratio.notna() | shown.ms_q50.isna()]
    if shown.ratio.isna().all():  # cut short before cuDNN's, or a GPU without it
        return
    place = drawn_place(shown)
    shown = shown[(shown[PLACE] == place).all(axis=1)]
    operations = sorted(shown.operation.unique())
    shapes = sorted(set(shown[SHAPE].itertuples(index=False, name=None)), key=lambda shape: (shape[1], shape[3], shape))
    there = [provider for provider in COLORS if provider in set(shown.provider)]
    width = min(0.11, ALL_BARS / len(there))
    size = (max(10, 0.33 * len(there) * len(shapes)), 0.8 + 3 * len(operations))
    figure, axes = pyplot.subplots(len(operations), 1, figsize=size, squeeze=False, layout="constrained")
    for axis, operation in zip(axes[:, 0], operations, strict=True):
        for group, shape in enumerate(shapes):
            here = shown[(shown.operation == operation) & (shown[SHAPE] == shape).all(axis=1)]
            found = dict(zip(here.provider, here.ratio, strict=True))
            for i, provider in enumerate(bars := [provider for provider in COLORS if provider in found]):
                x, ratio = group + (i - (len(bars) - 1) / 2) * width, found[provider]
                style: dict[str, Any] = {"va": "bottom", "ha": "center", "fontsize": 7}
                if pd.isna(ratio):
                    axis.text(x, 0.02, TOO_SLOW, rotation=90, color=COLORS[provider], **style)
                else:
                    axis.bar(x, ratio, 0.92 * width, color=COLORS[provider])
                    axis.text(x, ratio, f"{ratio:.2f}", bbox=BOX, **style)
        axis.set_xticks(range(len(shapes)), [f"B{b}  T {t:,}  H{h}  D{d}" for b, t, h, d in shapes])
        axis.set_ylabel("speed, cuDNN softmax = 1")
        axis.set_title(operation.replace("+", " + "), loc="left", fontsize=11)
        axis.axhline(1.0, color="black", linewidth=0.6, zorder=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(y=0.12)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLORS[provider]) for provider in there]
    figure.legend(handles, there, loc="outside lower center", ncols=min(len(handles), 5), frameon=False)
    figure.suptitle(f"{place[0]}, Triton {place[1]}, bf16, {title}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
