"""Beyond the papers: Which size, step and learning rate at equal compute.

Held-out loss of FoX (Pro) and Transformer (Pro) within the training context, by training tokens and by time on the GPU, for
several sizes of model and tokens a step, at a third and at all of the tokens that each trains on in the same time, and at
several learning rates. Which setting has the lowest loss for its time? How does FoX's lead depend on steps and on tokens, in
nats, and as the share of the Transformer's tokens with which FoX has the Transformer's loss? Not in the paper."""

import json
import math
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from analysis.curves import difference, stored_curves
from analysis.names import DASHED, SHADES, title
from analysis.study import Study
from analysis.style import WIDTH, Files, about, millions, plt, publish, tokens
from analysis.tables import Cell, Column, Table, over_seeds, write_table
from analysis.training_curves import trainings
from experiments import evaluations
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at, widths_of_mlps
from training.spec import RunSpec

FOX, OTHER = PAIR = ("fox_pro", "transformer_pro")
Sizes = tuple[tuple[float, ...], dict[tuple[int, int], dict[int, int]]]
SIZES: dict[tuple[str, ...], Sizes] = {
    TINIES: ((4e-3, 8e-3), {(64, 2): {1024: 196608}, (128, 2): {1024: 98304}}),
    MINIS: (
        (1e-3, 2e-3, 4e-3),
        {
            (256, 8): {2**13: 360_000_000, 2**14: 480_000_000, 2**15: 600_000_000},
            (384, 10): {2**13: 180_000_000, 2**14: 240_000_000, 2**15: 300_000_000},
            (512, 12): {2**13: 120_000_000, 2**14: 150_000_000, 2**15: 180_000_000},
        },
    ),
    PAPERS: ((1e-3, 2e-3), {(768, 12): {2**18: 5 * 2**29, 2**19: 5 * 2**29}}),
}
"""Rates, and by width and layers, then by tokens a step: the training tokens of a run of five minutes on one GPU."""
SHARES = (3, 1)
AXES = {"width": int, "layers": int, "step": int, "peak_lr": float, "train_tokens": int}
SETTING = ("width", "layers", "step", "train_tokens")
MARKERS = "osD^"
COLUMNS = (
    Column("steps", "steps", 0), Column("per_parameter", "tokens a parameter", 1), Column("minutes", "minutes", 1),
    Column("fox_lr", "FoX (Pro): LR", 4), Column("fox_loss", "loss (nats)", 3, "lower"),
    Column("other_lr", "Transformer (Pro): LR", 4), Column("other_loss", "Transformer's loss (nats)", 3, "lower"),
    Column("lead", "lead of FoX (nats)", 3, style="signed"), Column("share", "FoX's share of tokens", 2),
)  # fmt: skip


def runs(scale, seeds):
    rates, sizes = sizes_at(scale, SIZES, __name__)
    for (width, layers), whole in sizes.items():
        model = dict(hidden_size=width, num_layers=layers, mlp_width=widths_of_mlps(width)["pro"])
        for (step, most), part, rate in product(whole.items(), SHARES, rates):
            steps = most // part // step
            train = dict(batch_tokens=step, train_tokens=step * steps, warmup_tokens=step * (steps // 16), peak_lr=rate)
            axes = dict(width=width, layers=layers, step=step, peak_lr=rate, train_tokens=step * steps)
            label = f"{_named(width, layers, step, step * steps)}, LR {rate:g}"
            for name, head in ((FOX, scale.fox_head_dim), (OTHER, scale.transformer_head_dim)):
                own = model | dict(num_heads=width // min(head, width))
                yield from recipes(scale, name, seeds, axes=axes, label=label, model=own, train=train)


def evals(scale):
    return evaluations.loss(scale) + evaluations.curve(scale)


def _named(width: int, layers: int, step: int, count: int) -> str:
    return f"{width} x {layers}, steps of {tokens(step)}, {millions(count)} tokens"


def points(study: Study) -> pd.DataFrame:
    """Return a row per line: its axes, model, label, `curve`, `loss` within the training context, `minutes` of training at the
    median speed of the fastest seed, and tokens a `parameter`; lines with fewer tokens first, the best rates last."""
    took = {(each.model, each.label): each.tokens[-1] / each.tokens_per_s.max() / 60 for each in trainings(study)}
    rows = []
    for curve in stored_curves(study):
        spec = RunSpec.from_json(json.dumps(study.spec(curve.run_ids[0])))
        own = dict(model=curve.model, label=curve.label, curve=curve, loss=curve.inside)
        per = spec.train.train_tokens / spec.model.num_params
        rows.append(curve.axes | own | dict(minutes=took.get((curve.model, curve.label)), per_parameter=per))
    return pd.DataFrame(rows).sort_values([*SETTING, "loss"], ascending=[True] * len(SETTING) + [False])


def best_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the line with the best rate of each setting and model."""
    return rows.drop_duplicates([*SETTING, "model"], keep="last")


def share_of_tokens(fox: pd.DataFrame, loss: float, count: int) -> float | None:
    """Return the share of the Transformer's tokens with which FoX has its loss, interpolated in log tokens between FoX's runs
    of this size and step; None outside of them."""
    losses, logs = fox["loss"].to_numpy()[::-1], np.log(fox["train_tokens"].to_numpy()[::-1])
    inside = len(losses) and losses.min() <= loss <= losses.max() and (np.diff(losses) > 0).all()
    return math.exp(np.interp(loss, losses, logs)) / count if inside else None


def draw(study: Study) -> Files:
    rows = points(study)
    sizes, steps = (sorted(rows[name].unique()) for name in ("width", "step"))
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.6), sharey=True)
    for (width, step, model), own in best_of(rows).groupby(["width", "step", "model"]):
        fill, dashes = ("full", (None, None)) if model == FOX else ("none", DASHED)
        look: dict[str, Any] = dict(color=SHADES[sizes.index(width)], marker=MARKERS[steps.index(step)], fillstyle=fill)
        for axes, x in zip(panels, ("train_tokens", "minutes"), strict=True):
            axes.plot(own[x], own["loss"], dashes=dashes, **look)
    for axes, xlabel in zip(panels, ("training tokens", "minutes of training"), strict=True):
        axes.set(xscale="log", xlabel=xlabel)
    panels[0].set_ylabel(f"mean loss, first {tokens(study.train_len)} (nats)")
    grey: dict[str, Any] = dict(color="#555555", linestyle="")
    handles = [Line2D([], [], color=SHADES[place], label=f"width {width}") for place, width in enumerate(sizes)]
    marked = zip(MARKERS, steps, strict=False)
    handles += [Line2D([], [], marker=marker, label=f"steps of {tokens(step)}", **grey) for marker, step in marked]
    handles += [Line2D([], [], marker="o", fillstyle="none", label=title(OTHER), **grey)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    files = write_table(summary(study), study.folder / "tables" / study.stem)
    return [*publish(study, figure, rows.drop(columns="curve"), "each model at its best learning rate"), *files]


def summary(study: Study) -> Table:
    """Tabulate both models at their best rates by setting, FoX's lead in nats, and its tokens as a share."""
    values: dict[str, list[Cell]] = {}
    best = best_of(points(study))
    for (width, layers, step, count), own in best.groupby(list(SETTING)):
        pair = {row["model"]: row for _, row in own.iterrows()}
        fox, other = pair.get(FOX), pair.get(OTHER)
        cells: list[Cell] = [count // step, own["per_parameter"].iloc[0], own["minutes"].max()]
        for row in (fox, other):
            cells += [None, None] if row is None else [row["peak_lr"], row["curve"].log_p(study.train_len)]
        if fox is not None and other is not None:
            alike = best[(best[["model", *SETTING[:3]]] == [FOX, width, layers, step]).all(axis=1)]
            cells += [difference(other["curve"], fox["curve"]), share_of_tokens(alike, other["loss"], count)]
        values[_named(width, layers, step, count)] = cells + [None] * (len(COLUMNS) - len(cells))
    note = f"{about(study)} Minutes of the slower model. Each model at the best of its learning rates, which were picked by "
    note += "the same losses. In square brackets: 95% intervals over documents by source and seeds."
    return over_seeds(f"Loss up to {tokens(study.train_len)} by size, step and tokens", COLUMNS, values, note)
