"""Beyond the papers: FoX among its successors.

Where FoX stands beside models that came with it or after it, at equal tokens and nearly equal parameters. ALiBi is the gate
as a fixed decay, PaTH-FoX is FoX (LLaMA) with positions that depend on the text, Wall attention has a forget gate for each
channel of the keys, Mamba-3 is Mamba-2 with a finer rule, such positions, and MLPs; the hybrid has a layer of FoX after every
three of Gated DeltaNet (at tiny, which has two layers, after one). Left: loss inside the training context beside FoX (Pro),
and the numbers that a model keeps to decode 16,384 tokens. Right: the same by position. No claim is judged."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pydantic import TypeAdapter

from analysis.curves import LossCurve, difference, first_plotted, stored_curves
from analysis.names import SEVEN, style_of
from analysis.panels import band_note, position_axis
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from models.spec import ModelSpec

AXES = {"rope_base": float | None}
FOX = "fox_pro"
MODEL: TypeAdapter[ModelSpec] = TypeAdapter(ModelSpec)
DECODED = 16_384
LARGER_BASE = 5e6
BANDS = 16
SUCCESSORS = (
    "gated_linear_attention",
    "gated_delta_net",
    "kimi_delta_attention",
    "fox_hybrid",
    "path_fox",
    "wall_attention",
    "mamba3",
)


def runs(scale, seeds):
    yield from recipes(scale, (*SEVEN, "alibi_pro", "alibi", *SUCCESSORS), seeds)
    for model in ("transformer_pro", "transformer_llama"):
        how = dict(rope_base=LARGER_BASE)
        yield from recipes(scale, model, seeds, axes=how, label=f"RoPE base {LARGER_BASE:g}", model=how)


def name(curve: LossCurve) -> str:
    """Print a series: its model, and what it has otherwise."""
    return style_of(curve.model).label + (f", {curve.label}" if curve.axes else "")


def kept(study: Study, curve: LossCurve, length: int = DECODED) -> int:
    """Count the numbers that a model keeps to decode a text of this length."""
    return MODEL.validate_json(json.dumps(study.spec(curve.run_ids[0])["model"])).state_size(length)


def ranking(study: Study) -> tuple[LossCurve, list[LossCurve]]:
    """Return FoX (Pro), and all models, the best first. ValueError without FoX (Pro)."""
    curves = sorted(stored_curves(study), key=lambda curve: curve.inside)
    fox = next((curve for curve in curves if curve.model == FOX), None)
    if fox is None:
        raise ValueError(f"{study.stem}: FoX (Pro) is not among the stored runs; run its experiment without --only")
    return fox, curves


def draw(study: Study) -> Files:
    fox, curves = ranking(study)
    tables = {c: _along(c, fox).assign(model=c.model, series=name(c), kept=kept(study, c)) for c in curves}
    table, train_len = pd.concat(tables.values(), ignore_index=True), study.train_len
    inside = table[(table["last"] <= train_len) & (table["first"] > first_plotted(train_len))]["behind"]
    low, high = min(0.0, inside.min()), max(inside.max(), 1e-3)
    limits = low - 0.15 * (high - low), high + 0.4 * (high - low)
    growing = [c for c in curves if kept(study, c, 2 * DECODED) > kept(study, c)]
    families = {"state that grows with the text": growing, "state of fixed size": [c for c in curves if c not in growing]}
    families = {title: rows for title, rows in families.items() if rows}
    heights = [len(rows) + 1.5 for rows in families.values()]
    shape: dict[str, Any] = dict(figsize=(WIDTH, 0.9 + 0.21 * sum(heights)), height_ratios=heights, width_ratios=(1, 1.35))
    figure, grid = plt.subplots(len(families), 2, squeeze=False, sharex="col", **shape)
    for (left, right), (title, rows) in zip(grid, families.items(), strict=True):
        labels = [f"{name(c)}  {_size(kept(study, c))}".replace("), ", "),\n") for c in rows]
        left.set_yticks(range(len(rows)), labels, fontsize=7, linespacing=0.9)
        left.set(ylim=(len(rows) - 0.4, -0.6), title=title)
        position_axis(right, train_len, fox.length, pieces=4, ylim=limits)
        left.axvline(0, color="#222222", linewidth=0.8)
        right.axhline(0, color="#222222", linewidth=0.8)
        for place, curve in enumerate(rows):
            _draw_one(left, right, place, curve, fox, tables[curve])
    grid[-1][0].set(xlabel="loss above FoX (Pro), nats")
    grid[0][1].set(title="and by position")
    grid[-1][1].set(xlabel="Token index $i$")
    mean = (
        f"left: mean over the training context of {tokens(train_len)}, bars: 95% (documents by source, and seeds), beside the "
        f"numbers kept to decode {DECODED:,} tokens; right: by position"
    )
    cut = "" if table["behind"].dropna().between(*limits).all() else "curves that leave the frame go on outside"
    return publish(study, figure, table, mean, cut, band_note(len(curve.seeds) for curve in curves).split(", bands")[0])


def _draw_one(left: Axes, right: Axes, place: int, curve: LossCurve, fox: LossCurve, along: pd.DataFrame) -> None:
    """Draw a model: its mean in a row of its own, and its curve, which its marker tells from the others."""
    style, fill = style_of(curve.model), "none" if curve.axes else "full"
    same: dict[str, Any] = dict(color=style.colour, marker=style.marker, fillstyle=fill)
    whole = Estimate(0.0, 0.0) if curve is fox else difference(curve, fox)
    left.hlines(place, *(whole.interval or (whole.effect, whole.effect)), color=style.colour, linewidth=1.2)
    left.plot(whole.effect, place, **same, markersize=5)
    if curve is not fox:
        every = max(1, len(along) // 4)
        at, some = (along["first"] + along["last"]) / 2, (place % every, every)
        (drawn,) = right.plot(at, along["behind"], **same, linewidth=1.2, markersize=4, markevery=some)
        drawn.set_dashes((1.0, 1.0) if curve.axes else style.dashes or (None, None))


def _size(count: int) -> str:
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"


def _along(curve: LossCurve, fox: LossCurve) -> pd.DataFrame:
    """Bands of positions, and by how much `curve` is behind FoX (Pro) there, with a 95% interval (NaN where not known)."""
    edges = np.append(0, fox.ends_K) if len(fox.ends_K) else np.unique(np.linspace(0, fox.length, BANDS + 1).astype(int))
    rows = []
    for first, last in pairwise(edges.tolist()):
        apart = Estimate(0.0) if curve is fox else difference(curve, fox, first + 1, last)
        rows.append((first + 1, last, apart.effect, *(apart.interval or (np.nan, np.nan))))
    return pd.DataFrame(rows, columns=["first", "last", "behind", "low", "high"])


def summary(study: Study) -> Table:
    """All models, the best first, each beside FoX (Pro) and beside the one above it; 95% intervals in square brackets."""
    fox, curves = ranking(study)
    columns = [
        Column("loss", "loss (nats)", 4, "lower"),
        Column("behind_fox", "above FoX (Pro)", 4, style="signed"),
        Column("behind_next", "above the row before", 4, style="signed"),
        Column("kept", f"kept at {tokens(DECODED)} (millions)", 2),
        Column("seeds", "seeds", 0),
    ]
    values: dict[str, list[Cell]] = {}
    for curve, before in zip(curves, (None, *curves), strict=False):
        behind = None if curve is fox else difference(curve, fox)
        above = None if before is None else difference(curve, before)
        values[name(curve)] = [curve.inside, behind, above, kept(study, curve) / 1e6, len(curve.seeds)]
    note = (
        f"{about(study)} Mean over {tokens(study.train_len)} tokens of context. "
        "Two rows whose difference has an interval with 0 in it cannot be told apart. Learning rates are those of the scale."
    )
    return over_seeds("Loss beside FoX (Pro)", columns, values, note)
