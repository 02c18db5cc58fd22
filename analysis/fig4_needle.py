"""Figure 4: needle in a haystack, one heatmap per model and mode, depth against context length."""

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from analysis.names import SEVEN, label, ordered
from analysis.rows import one_evaluation_each, train_seq_len
from analysis.style import figure_style, plt, save, scale_note, tokens
from analysis.tables import Column, Table
from results.atomic import write_atomic

KIND = "needle"
TITLE = "Needle in a haystack"
PAPER = "Figure 4"
SHOWS = (
    "Scores from 1 (red) to 10 (green) by depth of the needle and length of the context; easy mode left, standard mode right. "
    "FoX is near perfect within the training context in both modes, the Transformers in easy mode; the recurrent models do "
    "poorly. FoX and Transformer (Pro) extrapolate partly beyond the training context, Transformer (LLaMA) does not."
)
CLAIMS = ("C22b", "C22c")
MODELS = SEVEN

MODES = ("easy", "standard", "passkey")
COLOURS = "RdYlGn"
PANELS_PER_ROW = 4
NO_CELL = "#DDDDDD"


def render(rows: pd.DataFrame, meta: dict[str, Any], out: Path) -> list[Path]:
    """Write out/figures/fig4_needle.{png,pdf,csv} for the models and modes in `rows`; the CSV holds the cells' means."""
    train_len = train_seq_len(meta)
    one_evaluation_each(rows, ["mode", "length", "depth", "sample"])
    stem = out / "figures" / "fig4_needle"
    with figure_style():
        paths = save(_draw(rows, meta["scale"], train_len), stem)
    cells = rows.groupby(["model", "mode", "length", "depth"], as_index=False)[["score", "exact", "fuzzy"]].mean()
    text = StringIO()
    cells.to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
    write_atomic(stem.with_suffix(".csv"), text.getvalue())
    return [*paths, stem.with_suffix(".csv")]


def _draw(rows: pd.DataFrame, scale: str, train_len: int) -> Figure:
    models, modes = ordered(rows["model"].unique()), [mode for mode in MODES if mode in set(rows["mode"])]
    per_row = min(max(1, PANELS_PER_ROW // len(modes)), len(models))
    lines = -(-len(models) // per_row)
    width = max(3.0 * per_row * len(modes), 6.4)
    height = float(np.clip(0.75 + 0.13 * rows["depth"].nunique(), 1.3, 2.1))
    layout = ConstrainedLayoutEngine(wspace=0.04, hspace=0.06)
    figure, panels = plt.subplots(
        lines, per_row * len(modes), figsize=(width, height * lines + 0.9), layout=layout, squeeze=False
    )
    figure.suptitle(_note(rows, scale, train_len, narrow=width < 11), fontsize=9.5, color="#444444")
    free = list(panels.flat)
    for index, (model, mode) in enumerate((model, mode) for model in models for mode in modes):
        axes = free[index]
        axes.set_title(f"{label(model)}, {mode}", fontsize=10.5, pad=3)
        _panel(axes, rows[(rows["model"] == model) & (rows["mode"] == mode)], train_len)
        if index % (per_row * len(modes)):
            axes.set_yticklabels([])
    for axes in free[len(models) * len(modes) :]:
        axes.set_axis_off()
    figure.supxlabel("context length (tokens)", fontsize=11)
    figure.supylabel("depth of the needle", fontsize=11)
    return figure


def _note(rows: pd.DataFrame, scale: str, train_len: int, *, narrow: bool) -> str:
    judges = sorted(set(rows["scored_by"]))
    scored = "match of the answer" if judges == ["match"] else " and ".join(judges)
    first, second = scale_note(scale), f"scores 1 (red) to 10 (green) by {scored} · dashed: training length {tokens(train_len)}"
    return f"{first}\n{second}" if narrow else f"{first} · {second}"


def _panel(axes: Axes, rows: pd.DataFrame, train_len: int) -> None:
    """Depth grows downwards; every cell has the same size, whatever the spacing of the lengths."""
    axes.grid(False)
    axes.set_facecolor(NO_CELL)
    if rows.empty:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "not evaluated", transform=axes.transAxes, ha="center", va="center", fontsize=9)
        return
    grid = rows.pivot_table(index="depth", columns="length", values="score", aggfunc="mean")
    lengths, depths = grid.columns.to_numpy(), grid.index.to_numpy()
    mesh = np.ma.masked_invalid(grid.to_numpy())
    axes.pcolormesh(mesh, cmap=COLOURS, vmin=1, vmax=10, edgecolors="white", linewidth=0.4)
    axes.set_ylim(len(depths), 0)
    shown = _every(len(lengths), 6)
    axes.set_xticks(shown + 0.5, _length_labels(lengths[shown]), fontsize=8.5)
    shown = _every(len(depths), 6)
    axes.set_yticks(shown + 0.5, [f"{depths[at]:g}%" for at in shown], fontsize=8.5)
    axes.tick_params(length=2)
    for side in axes.spines.values():
        side.set_visible(False)
    if lengths[0] <= train_len <= lengths[-1]:
        # Between two columns by interpolation; at the paper's grid this is the middle of the 16,500 column.
        at = np.interp(train_len, lengths, np.arange(len(lengths)) + 0.5)
        axes.axvline(at, color="black", linestyle=(0, (4, 3)), linewidth=1.6)


def _every(count: int, most: int) -> np.ndarray:
    """At most `most` evenly spaced indices from the first on."""
    return np.arange(0, count, -(-count // most))


def _length_labels(lengths: np.ndarray) -> list[str]:
    """As in the paper, thousands ("7.2k"), or whole numbers on short grids."""
    return [f"{length / 1000:.3g}k" if lengths[-1] >= 8_000 else str(length) for length in lengths]


def summary(rows: pd.DataFrame, meta: dict[str, Any]) -> Table:
    """Mean score per mode, inside the training context and beyond it."""
    train_len = train_seq_len(meta)
    modes = [mode for mode in MODES if mode in set(rows["mode"])]
    places = {
        "inside": rows["length"] <= train_len,
        "beyond": rows["length"] > train_len,
    }
    columns, masks = [], []
    for mode in modes:
        for place, mask in places.items():
            mask = mask & (rows["mode"] == mode)
            if mask.any():
                columns.append(Column(f"{mode}_{place}", f"{mode}, {place} {tokens(train_len)}", 2, "higher"))
                masks.append(mask)
    table = {}
    for model in ordered(rows["model"].unique()):
        of_model = rows["model"] == model
        table[model] = [float(rows.loc[mask & of_model, "score"].mean()) for mask in masks]
    samples = rows.groupby(["run_id", "mode", "length", "depth"]).size().max()
    note = f"{scale_note(scale=meta['scale']).capitalize()}. {samples} sample{'s' if samples > 1 else ''} per cell."
    return Table("Mean needle score, 1 to 10", columns, table, note)
