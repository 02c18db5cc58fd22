"""FoX among its successors: recurrent layers with gated delta rules, fixed decays, and RoPE with a larger base."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from analysis.curves import LossCurve, compare, difference, fewest_seeds, first_plotted, stored_curves
from analysis.names import SEVEN, LineStyle, style_of
from analysis.panels import band_note, legend_of, position_axis
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, plt, publish, scale_note, tokens
from analysis.tables import Column, Table
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from models.spec import ModelSpec

TITLE = "FoX among its successors"
PAPER = "beyond the paper"
SHOWS = (
    "Where the forget gate in softmax attention stands beside models that came with it or after it, at equal tokens and nearly "
    "equal parameters: ALiBi (the gate as a fixed decay), a Transformer whose RoPE has a larger base, Gated DeltaNet and Kimi "
    "Delta Attention. Left: loss inside the training context against the numbers that a model keeps to decode 16,384 tokens. "
    "Right: loss by position beside FoX (Pro). No claim is judged."
)

AXES = {"rope_base": float | None}
FOX = "fox_pro"
MODEL: TypeAdapter[ModelSpec] = TypeAdapter(ModelSpec)
DECODED = 16_384
LARGER_BASE = 5e6
BANDS = 16


def runs(scale, seeds):
    yield from recipes(scale, (*SEVEN, "alibi_pro", "alibi", "gated_delta_net", "kimi_delta_attention"), seeds)
    for model in ("transformer_pro", "transformer_llama"):
        how = dict(rope_base=LARGER_BASE)
        yield from recipes(scale, model, seeds, axes=how, label=f"RoPE base {LARGER_BASE:g}", model=how)


def name(curve: LossCurve) -> str:
    """Print a series: its model, and what it has otherwise."""
    return style_of(curve.model).label + (f", {curve.label}" if curve.axes else "")


def kept(study: Study, curve: LossCurve) -> int:
    """Count the numbers that a model keeps to decode 16,384 tokens."""
    return MODEL.validate_json(json.dumps(study.spec(curve.run_ids[0])["model"])).state_size(DECODED)


def from_fox(study: Study) -> tuple[LossCurve, list[LossCurve]]:
    """Return FoX (Pro) and all others, the best first. ValueError without FoX (Pro)."""
    curves = sorted(stored_curves(study), key=lambda curve: float(curve.mean_N[: curve.train_len].mean()))
    fox = [curve for curve in curves if curve.model == FOX]
    if not fox:
        raise ValueError(f"{study.stem}: FoX (Pro) is not among the stored runs; run its experiment without --only")
    return fox[0], [curve for curve in curves if curve is not fox[0]]


def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    fox, others = from_fox(study)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.6), width_ratios=(1, 1.15))
    styles, tables = [], []
    for curve in (fox, *others):
        style = _style(curve)
        whole = Estimate(0.0, 0.0) if curve is fox else difference(curve, fox)
        low, high = whole.interval or (whole.effect, whole.effect)
        size = kept(study, curve)
        left.plot(size, whole.effect, style.marker, color=style.colour, fillstyle="none" if curve.axes else "full")
        left.vlines(size, low, high, color=style.colour, linewidth=1)
        rows = pd.DataFrame(_along(curve, fox), columns=["first", "last", "behind", "low", "high"])
        if curve is not fox:
            (drawn,) = right.plot((rows["first"] + rows["last"]) / 2, rows["behind"], color=style.colour)
            drawn.set_dashes(style.dashes or (None, None))
        styles.append(style)
        tables.append(rows.assign(model=curve.model, series=style.label, kept=size))
    table = pd.concat(tables, ignore_index=True)
    inside = table[(table["last"] <= study.train_len) & (table["first"] > first_plotted(study.train_len))]["behind"]
    low, high = min(0.0, inside.min()), max(inside.max(), 1e-3)
    span = high - low
    for axes in (left, right):
        axes.axhline(0, color="#222222", linewidth=0.8)
    left.set_xscale("log")
    left.set(xlabel=f"numbers kept to decode {DECODED:,} tokens", ylabel="loss above FoX (Pro), nats")
    left.margins(0.12)
    limits = low - 0.15 * span, high + 0.4 * span
    position_axis(right, study.train_len, fox.length, pieces=4, xlabel="Token index $i$", ylim=limits)
    legend_of(figure, styles, columns=3, markers=True)
    return publish(
        study,
        figure,
        table,
        f"left: mean over the training context of {tokens(study.train_len)}, bars: 95% (documents by source, and seeds)",
        "curves that leave the frame go on outside"
        if ((table["behind"] > limits[1]) | (table["behind"] < limits[0])).any()
        else "",
        band_note(len(curve.seeds) for curve in (fox, *others)).split(", bands")[0],
    )


def _style(curve: LossCurve) -> LineStyle:
    style = style_of(curve.model, name(curve))
    return LineStyle(style.label, style.colour, (1.0, 1.0), style.marker) if curve.axes else style


def _along(curve: LossCurve, fox: LossCurve) -> list[tuple[int, int, float, float, float]]:
    """Bands of positions, and by how much `curve` is behind FoX (Pro) there, with a 95% interval (NaN where not known)."""
    edges = np.append(0, fox.ends_K) if len(fox.ends_K) else np.unique(np.linspace(0, fox.length, BANDS + 1).astype(int))
    rows = []
    for first, last in zip(edges[:-1] + 1, edges[1:], strict=True):
        estimate = (
            Estimate(0.0) if curve is fox else compare((1.0, curve, int(first), int(last)), (-1.0, fox, int(first), int(last)))
        )
        rows.append((int(first), int(last), estimate.effect, *(estimate.interval or (np.nan, np.nan))))
    return rows


def summary(study: Study) -> Table:
    """All models, the best first, each beside FoX (Pro) and beside the one above it; 95% intervals in square brackets."""
    fox, others = from_fox(study)
    ranking = sorted((fox, *others), key=lambda curve: float(curve.mean_N[: curve.train_len].mean()))
    columns = [
        Column("loss", "loss (nats)", 4, "lower"),
        Column("behind_fox", "above FoX (Pro)", 4, style="signed"),
        Column("behind_next", "above the row before", 4, style="signed"),
        Column("kept", f"kept at {tokens(DECODED)} (millions)", 2),
        Column("seeds", "seeds", 0),
    ]
    rows: dict[str, list[float | None]] = {}
    ranges: dict[str, list[tuple[float, float] | None]] = {}
    for place, curve in enumerate(ranking):
        behind = None if curve is fox else difference(curve, fox)
        above = difference(curve, ranking[place - 1]) if place else None
        estimates = [None, behind, above, None, None]
        rows[name(curve)] = [
            float(curve.mean_N[: curve.train_len].mean()),
            *(each.effect if each else None for each in estimates[1:3]),
            kept(study, curve) / 1e6,
            fewest_seeds([curve]),
        ]
        ranges[name(curve)] = [each.interval if each else None for each in estimates]
    note = (
        f"{scale_note(study).capitalize()}. Corpus: {study.corpora}. Mean over {tokens(study.train_len)} tokens of context. "
        "Two rows whose difference has an interval with 0 in it cannot be told apart. Learning rates are those of the scale."
    )
    return Table("Loss beside FoX (Pro)", columns, rows, note, ranges=ranges)
