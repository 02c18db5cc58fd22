"""Figure 3: Forget gates and attention.

Forget-gate matrix F and attention matrix A of two heads of FoX (Pro), in logarithmic colours (the paper only shows where A is
above 0.5). Some heads forget fast: their F is a narrow band along the diagonal, shown only for the end of the text. Others keep
F near 1 over long spans and can look far back."""

import math
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from analysis.names import style_of, title
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from experiments.evaluations import gates as evals  # noqa: F401
from experiments.recipes import lines

KIND = "gate_maps"
LOWEST_COLOUR = 0.01
ZOOM = 8
"""Heads that forget within one cell are drawn over the last eighth of the text: the whole would show a single line of cells."""
LONGEST_LIFE = 10  # half-lives are drawn up to this multiple of the text's length
LOCAL_BELOW, GLOBAL_ABOVE = 1e-3, 0.5
SHORTEST_PRUNED = 1024  # eight of the kernel's tiles of 128; in shorter texts almost nothing can be skipped
Head = tuple[int, int]
COLOURS_NOTE = f"colours logarithmic from {LOWEST_COLOUR} to 1, $A$ white below"
runs = lines("fox_pro", once=True)


def head_statistics(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (layer, head), with one column per statistic."""
    return rows[rows["row"] < 0].pivot(index=["layer", "head"], columns="quantity", values="value")


def stored_heads(rows: pd.DataFrame) -> list[Head]:
    """Return the heads whose matrices are stored, the most local first (by median F at a distance). ValueError if none."""
    stored = rows.loc[rows["quantity"] == "F", ["layer", "head"]].drop_duplicates()
    drawn = set(zip(stored["layer"], stored["head"], strict=True))
    if not drawn:
        raise ValueError("no F matrices in the rows; dump gate maps of at least one head")
    medians = head_statistics(rows)["median_F"]
    return sorted(drawn, key=lambda head: (float(medians.loc[head]), head))


def two_heads(rows: pd.DataFrame) -> list[Head]:
    """Return the most local and the most global head among those whose matrices are stored."""
    order = stored_heads(rows)
    return [order[0], order[-1]] if len(order) > 1 else order


def draw(study: Study) -> Files:
    """Draw one line of matrices per label (of its first seed); the CSV contains every head's statistics."""
    groups = first_seeds(study)
    tables = []
    for label, rows in groups.items():
        tables.append(head_statistics(rows).reset_index())
        tables[-1].insert(0, "label", label)
        tables[-1].insert(1, "seed", rows["seed"].iloc[0])
    of = f"seed {min(own['seed'].iloc[0] for own in tables)} of {study.num_seeds}" if study.num_seeds > 1 else "one seed"
    shown = "of all heads the most local and the most global, by median $F$"
    return publish(study, _draw(study, groups), tables, COLOURS_NOTE, shown, of)


def labels_of(study: Study) -> dict[str, pd.DataFrame]:
    """Return all rows by label, in the paper's order of models. ValueError if there are none."""
    return {str(label): own for label, own in study.stored(KIND, "gate maps").groupby("label", sort=False)}


def first_seeds(study: Study) -> dict[str, pd.DataFrame]:
    return {label: own[own["seed"] == own["seed"].min()] for label, own in labels_of(study).items()}


def _draw(study: Study, groups: dict[str, pd.DataFrame]) -> Figure:
    figure = plt.figure(figsize=(WIDTH, 1.75 * len(groups) + 2.1))
    blocks = figure.subfigures(len(groups) + 1, 1, squeeze=False, height_ratios=[1.75] * len(groups) + [1.7])[:, 0]
    cap = 0.0
    for block, (label, own) in zip(blocks, groups.items(), strict=False):
        cell, seq_len = (study.extra(KIND, own["run_id"].iloc[0], name) for name in ("cell", "seq_len"))
        block.suptitle(title(label), fontsize=9)
        maps = list(product(two_heads(own), "FA"))
        panels = block.subplots(1, len(maps))
        for axes, (head, quantity) in zip(panels, maps, strict=True):
            matrix(axes, own, head, quantity, cell or 1)
        panels[0].set_ylabel("query $i$")
        cap = max(cap, LONGEST_LIFE * (seq_len or math.inf))
    half_lives(blocks[-1].subplots(), groups, cap)
    return figure


def matrix(axes: Axes, rows: pd.DataFrame, head: Head, quantity: str, cell: float) -> None:
    chosen = rows[(rows["layer"] == head[0]) & (rows["head"] == head[1]) & (rows["quantity"] == quantity)]
    size = int(chosen["row"].max()) + 1 if len(chosen) else 1
    matrix = np.full((size, size), np.nan)
    shown = np.maximum(chosen["value"], np.finfo(float).tiny)  # 0 has no logarithm, and would be white like future positions
    matrix[chosen["row"].to_numpy(), chosen["col"].to_numpy()] = shown
    first = 0
    if head_statistics(rows)["half_life_tokens"].to_dict()[head] < cell:
        first = size - max(1, size // ZOOM)
        matrix = matrix[first:, first:]
    colours = plt.get_cmap("viridis" if quantity == "F" else "Reds").with_extremes(bad="white")
    colours = colours.with_extremes(bad="white", under="white" if quantity == "A" else colours(0.0))
    start, length = first * cell, size * cell
    picture = axes.imshow(
        matrix, cmap=colours, norm=LogNorm(LOWEST_COLOUR, 1), extent=(start, length, length, start), interpolation="nearest",
        aspect="equal",
    )  # fmt: skip
    axes.set_title(f"${quantity}$, layer {head[0] + 1}, head {head[1] + 1}", fontsize=7.5, pad=3)
    axes.set_xlabel("key $j$")
    axes.grid(False)
    ticks = np.linspace(start, length, 5 if not first else 3)
    labels = [tokens(tick) if not first else f"{tick:g}" for tick in ticks]
    axes.set_xticks(ticks, labels, fontsize=6.5)
    axes.set_yticks(ticks, labels, fontsize=6.5)
    for side in axes.spines.values():
        side.set(visible=True, color="#999999")
    bar = axes.figure.colorbar(picture, ax=axes, fraction=0.046, pad=0.03, ticks=[LOWEST_COLOUR, 0.1, 1], format="%g")
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=6)
    bar.outline.set_visible(False)


def half_lives(axes: Axes, groups: dict[str, pd.DataFrame], cap: float) -> None:
    """Draw every head's half-life by layer, to show how many are local or global. Heads that never forget are put at `cap`."""
    offsets = np.linspace(-0.14, 0.14, len(groups)) if len(groups) > 1 else [0.0]
    layers: set[int] = set()
    for (label, own), offset in zip(groups.items(), offsets, strict=True):
        lives = head_statistics(own)["half_life_tokens"].reset_index()
        style = style_of(own["model"].iloc[0], label)
        axes.plot(
            lives["layer"] + 1 + offset, np.minimum(lives["half_life_tokens"], cap), style.marker, color=style.colour,
            alpha=0.75, markersize=4, markeredgewidth=0, label=style.label, clip_on=False,
        )  # fmt: skip
        layers |= set(lives["layer"] + 1)
    axes.set_yscale("log", base=10)
    axes.set(xlabel="layer", ylabel="half-life (tokens)", xticks=sorted(layers), xlim=(min(layers) - 0.6, max(layers) + 0.6))
    axes.set_title("Half-life of every head: tokens after which its gate has halved a key's weight")
    if len(groups) > 1:
        axes.legend(ncols=len(groups), loc="best")


def summary(study: Study) -> Table:
    """Tabulate how local the heads are."""
    apart, values = "a fixed distance", dict[str, list[Cell]]()
    for label, own in labels_of(study).items():
        seeds = [head_statistics(rows) for _, rows in own.groupby("run_id", sort=False)]
        distance, seq_len = (study.extra(KIND, own["run_id"].iloc[0], name) for name in ("distance", "seq_len"))
        if distance and not values:
            apart = f"{tokens(distance)} tokens"
        lives = np.array([float(heads["half_life_tokens"].median()) for heads in seeds])
        local = np.array([100 * float((heads["median_F"] < LOCAL_BELOW).mean()) for heads in seeds])
        wide = np.array([100 * float((heads["median_F"] > GLOBAL_ABOVE).mean()) for heads in seeds])
        values[label] = [float(len(seeds[0])), lives, local, wide]
        if (seq_len or 0) >= SHORTEST_PRUNED and all("pruned_share" in heads for heads in seeds):
            values[label].append(np.array([100 * float(heads["pruned_share"].mean()) for heads in seeds]))
    columns = [
        Column("heads", "heads", 0),
        Column("median_half_life", "median half-life (tokens)", 1),
        Column("local_heads", f"local heads (%): median F < {LOCAL_BELOW:g} at {apart}", 1),
        Column("global_heads", f"global heads (%): median F > {GLOBAL_ABOVE:g} at {apart}", 1),
        Column("pruned_share", "share of attention that can be pruned (%)", 1),
    ][: max(map(len, values.values()))]
    values = {label: [*cells, *[None] * (len(columns) - len(cells))] for label, cells in values.items()}
    note = about(study)
    if len(columns) < 5:
        note += f" Texts below {tokens(SHORTEST_PRUNED)} tokens have too few tiles of attention to say what pruning would skip."
    return over_seeds("Forget gates over all heads", columns, values, note)
