"""Figure 3: forget-gate matrix F and attention matrix A of a local and a global head, and the half-lives of all heads."""

import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.names import ordered, style_of
from analysis.rows import extra
from analysis.style import figure_style, plt, save, scale_note, tokens
from analysis.tables import Column, Table
from results.atomic import write_atomic

KIND = "gate_maps"
TITLE = "Forget gates and attention"
PAPER = "Figure 3"
SHOWS = (
    "Forget-gate matrix F and attention matrix A (only where above 0.5) of two heads of FoX (Pro). Some heads forget fast, a "
    "narrow band along the diagonal; others keep F near 1 over long spans and can look far back."
)
CLAIMS = ()
MODELS = ("fox_pro",)

SHOWN_ABOVE = 0.5
LONGEST_LIFE = 10  # half-lives are drawn up to this multiple of the text's length
LOCAL_BELOW, GLOBAL_ABOVE = 1e-3, 0.5

Head = tuple[int, int]


def head_statistics(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per (layer, head), one column per statistic."""
    return rows[rows["row"] < 0].pivot(index=["layer", "head"], columns="quantity", values="value")


def two_heads(rows: pd.DataFrame) -> list[Head]:
    """Of the heads whose matrices are stored: the most local and the most global, by median F at the fixed distance."""
    stored = rows.loc[rows["quantity"] == "F", ["layer", "head"]].drop_duplicates()
    drawn = set(zip(stored["layer"], stored["head"], strict=True))
    if not drawn:
        raise ValueError("fig3_forget_gates: no F matrices in the rows; dump gate maps of at least one head")
    medians = head_statistics(rows)["median_F"]
    order = sorted(drawn, key=lambda head: (float(medians.loc[head]), head))
    return [order[0], order[-1]] if len(order) > 1 else order


def render(rows: pd.DataFrame, meta: dict[str, Any], out: Path) -> list[Path]:
    """Write out/figures/fig3_forget_gates.{png,pdf,csv}: a line of matrices per model; the CSV holds the statistics."""
    if rows.groupby("model")["run_id"].nunique().max() > 1 or rows.groupby("run_id")["eval_id"].nunique().max() > 1:
        raise ValueError("fig3_forget_gates: shows one run and one evaluation per model; gather only one")
    stem = out / "figures" / "fig3_forget_gates"
    with figure_style():
        paths = save(_draw(rows, meta), stem)
    text = StringIO()
    statistics = {model: head_statistics(rows[rows["model"] == model]) for model in ordered(rows["model"].unique())}
    pd.concat(statistics, names=["model"]).to_csv(text, float_format="%.6g", lineterminator="\n")
    write_atomic(stem.with_suffix(".csv"), text.getvalue())
    return [*paths, stem.with_suffix(".csv")]


def _draw(rows: pd.DataFrame, meta: dict[str, Any]) -> Figure:
    models = ordered(rows["model"].unique())
    figure = plt.figure(figsize=(11.5, 3.15 * len(models) + 3.0), layout="constrained")
    figure.suptitle(f"{scale_note(meta['scale'])} · $A$ shown where above {SHOWN_ABOVE}", fontsize=9.5, color="#444444")
    blocks = figure.subfigures(len(models) + 1, 1, squeeze=False, height_ratios=[3.15] * len(models) + [2.6])[:, 0]
    for block, model in zip(blocks, models, strict=False):
        own = rows[rows["model"] == model]
        run_id = own["run_id"].iloc[0]
        block.suptitle(style_of(model).label, fontsize=12)
        heads = two_heads(own)
        panels = np.atleast_1d(block.subplots(1, 2 * len(heads), sharey=True))
        for index, head in enumerate(heads):
            cell = extra(meta, run_id, "cell") or 1
            _matrix(panels[2 * index], own, head, "F", cell)
            _matrix(panels[2 * index + 1], own, head, "A", cell)
        panels[0].set_ylabel("query $i$")
    cap = LONGEST_LIFE * max(extra(meta, run_id, "seq_len") or math.inf for run_id in rows["run_id"].unique())
    _half_lives(blocks[-1].subplots(), rows, models, cap)
    return figure


def _matrix(axes: Axes, rows: pd.DataFrame, head: Head, quantity: str, cell: float) -> None:
    chosen = rows[(rows["layer"] == head[0]) & (rows["head"] == head[1]) & (rows["quantity"] == quantity)]
    size = int(chosen["row"].max()) + 1 if len(chosen) else 1
    matrix = np.full((size, size), np.nan)
    matrix[chosen["row"].to_numpy(), chosen["col"].to_numpy()] = chosen["value"].to_numpy()
    if quantity == "A":
        matrix[~(matrix > SHOWN_ABOVE)] = np.nan
    colours = plt.get_cmap("viridis" if quantity == "F" else "Reds").with_extremes(bad="white")
    length = size * cell
    picture = axes.imshow(
        matrix, cmap=colours, vmin=0, vmax=1, extent=(0, length, length, 0), interpolation="nearest", aspect="equal"
    )
    axes.set_title(f"${quantity}$, layer {head[0] + 1}, head {head[1] + 1}", fontsize=10.5)
    axes.set_xlabel("key $j$")
    axes.grid(False)
    ticks = np.linspace(0, length, 5)
    axes.set_xticks(ticks, [tokens(tick) for tick in ticks], fontsize=8.5)
    axes.set_yticks(ticks, [tokens(tick) for tick in ticks], fontsize=8.5)
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color("#999999")
    if quantity == "A" and not np.isfinite(matrix).any():
        axes.text(0.97, 0.95, f"nothing above {SHOWN_ABOVE}", transform=axes.transAxes, ha="right", va="top", fontsize=8.5)
    bar = axes.figure.colorbar(picture, ax=axes, fraction=0.046, pad=0.03, ticks=[0, 0.5, 1])
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def _half_lives(axes: Axes, rows: pd.DataFrame, models: list[str], cap: float) -> None:
    """Every head's half-life by layer: how many are local and how many global. A head that never forgets is at `cap`."""
    offsets = np.linspace(-0.14, 0.14, len(models)) if len(models) > 1 else [0.0]
    for model, offset in zip(models, offsets, strict=True):
        lives = head_statistics(rows[rows["model"] == model])["half_life_tokens"].reset_index()
        style = style_of(model)
        axes.plot(
            lives["layer"] + 1 + offset, np.minimum(lives["half_life_tokens"], cap), style.marker, color=style.colour,
            alpha=0.75, markersize=6, markeredgewidth=0, label=style.label, clip_on=False,
        )  # fmt: skip
    axes.set_yscale("log", base=10)
    axes.set_xlabel("layer")
    axes.set_ylabel("half-life (tokens)")
    layers = np.unique(rows.loc[rows["row"] < 0, "layer"]) + 1
    axes.set_xticks(layers)
    axes.set_xlim(layers[0] - 0.6, layers[-1] + 0.6)
    axes.set_title("Half-life of every head: tokens after which its gate has halved a key's weight", fontsize=10.5)
    if len(models) > 1:
        axes.legend(ncols=len(models), fontsize=9, loc="best")


def summary(rows: pd.DataFrame, meta: dict[str, Any]) -> Table:
    """How local the heads are."""
    table: dict[str, list[float | None]] = {}
    distance = None
    for model in ordered(rows["model"].unique()):
        own = rows[rows["model"] == model]
        distance = extra(meta, own["run_id"].iloc[0], "distance") or distance
        heads = head_statistics(own)
        pruned = 100 * float(heads["pruned_share"].mean()) if "pruned_share" in heads else None
        table[model] = [
            float(len(heads)),
            float(heads["half_life_tokens"].median()),
            100 * float((heads["median_F"] < LOCAL_BELOW).mean()),
            100 * float((heads["median_F"] > GLOBAL_ABOVE).mean()),
            pruned,
        ]
    apart = f"{tokens(distance)} tokens" if distance else "a fixed distance"
    columns = [
        Column("heads", "heads", 0),
        Column("median_half_life", "median half-life (tokens)", 1),
        Column("local_heads", f"local heads (%): median F < {LOCAL_BELOW:g} at {apart}", 1),
        Column("global_heads", f"global heads (%): median F > {GLOBAL_ABOVE:g} at {apart}", 1),
        Column("pruned_share", "share of attention that can be pruned (%)", 1),
    ]
    return Table("Forget gates over all heads", columns, table, scale_note(meta["scale"]).capitalize() + ".")
