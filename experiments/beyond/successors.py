"""Beyond the papers: FoX among its successors.

Where the forget gate in softmax attention stands beside models that came with it or after it, at equal tokens and nearly equal
parameters: ALiBi (the gate as a fixed decay), a Transformer whose RoPE has a larger base, gated linear attention, Gated
DeltaNet, Kimi Delta Attention, a hybrid that has a layer of FoX after every three of Gated DeltaNet (at tiny, which has two
layers, after one), PaTH-FoX (FoX (LLaMA) with positions that depend on the text), Wall attention (a forget gate a channel of
the keys), and Mamba-3 (Mamba-2 with a finer rule, positions that depend on the text, and MLPs). Left: loss inside the training
context against the numbers that a model keeps to decode 16,384 tokens. Right: loss by position beside FoX (Pro). No claim is
judged."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from analysis.curves import LossCurve, difference, first_plotted, stored_curves
from analysis.names import SEVEN, LineStyle, style_of
from analysis.panels import band_note, legend_of, position_axis
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


def kept(study: Study, curve: LossCurve) -> int:
    """Count the numbers that a model keeps to decode 16,384 tokens."""
    return MODEL.validate_json(json.dumps(study.spec(curve.run_ids[0])["model"])).state_size(DECODED)


def ranking(study: Study) -> tuple[LossCurve, list[LossCurve]]:
    """Return FoX (Pro), and all models, the best first. ValueError without FoX (Pro)."""
    curves = sorted(stored_curves(study), key=lambda curve: curve.inside)
    fox = next((curve for curve in curves if curve.model == FOX), None)
    if fox is None:
        raise ValueError(f"{study.stem}: FoX (Pro) is not among the stored runs; run its experiment without --only")
    return fox, curves


def draw(study: Study) -> Files:
    fox, curves = ranking(study)
    curves = [fox, *(curve for curve in curves if curve is not fox)]
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.9), width_ratios=(1, 1.15))
    styles, tables = [_style(curve) for curve in curves], []
    sizes = [kept(study, curve) for curve in curves]
    for curve, style, size, at in zip(curves, styles, sizes, _side_by_side(sizes), strict=True):
        whole = Estimate(0.0, 0.0) if curve is fox else difference(curve, fox)
        left.plot(at, whole.effect, style.marker, color=style.colour, fillstyle="none" if curve.axes else "full")
        left.vlines(at, *(whole.interval or (whole.effect, whole.effect)), color=style.colour, linewidth=1)
        rows = _along(curve, fox)
        if curve is not fox:
            (drawn,) = right.plot((rows["first"] + rows["last"]) / 2, rows["behind"], color=style.colour)
            drawn.set_dashes(style.dashes or (None, None))
        tables.append(rows.assign(model=curve.model, series=style.label, kept=size))
    table, train_len = pd.concat(tables, ignore_index=True), study.train_len
    inside = table[(table["last"] <= train_len) & (table["first"] > first_plotted(train_len))]["behind"]
    low, high = min(0.0, inside.min()), max(inside.max(), 1e-3)
    limits = low - 0.15 * (high - low), high + 0.4 * (high - low)
    for axes in (left, right):
        axes.axhline(0, color="#222222", linewidth=0.8)
    left.set(xscale="log", xlabel=f"numbers kept to decode {DECODED:,} tokens", ylabel="loss above FoX (Pro), nats")
    left.margins(0.12)
    position_axis(right, train_len, fox.length, pieces=4, xlabel="Token index $i$", ylim=limits)
    legend_of(figure, styles, columns=3, markers=True)
    mean = (
        f"left: mean over the training context of {tokens(train_len)}, bars: 95% (documents by source, and seeds); "
        "models that keep equally many stand side by side"
    )
    cut = "" if table["behind"].dropna().between(*limits).all() else "curves that leave the frame go on outside"
    return publish(study, figure, table, mean, cut, band_note(len(curve.seeds) for curve in curves).split(", bands")[0])


def _side_by_side(sizes: list[int]) -> list[float]:
    """Places on a logarithmic axis: those within 2% of each other are moved apart, each by 9% from the next."""
    alike = [[abs(other / size - 1) < 0.02 for other in sizes] for size in sizes]
    return [size * 1.09 ** (sum(row[:i]) - (sum(row) - 1) / 2) for i, (size, row) in enumerate(zip(sizes, alike, strict=True))]


def _style(curve: LossCurve) -> LineStyle:
    style = style_of(curve.model, name(curve))
    return replace(style, dashes=(1.0, 1.0)) if curve.axes else style


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
