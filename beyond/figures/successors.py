"""Beyond the papers: FoX among its successors.

FoX compared with contemporary and later models, at equal tokens and nearly equal parameters. ALiBi is the gate as a fixed
decay, PaTH-FoX is FoX (LLaMA) with data-dependent position encoding, Wall attention has a forget gate for each channel of the
keys, Mamba-3 is Mamba-2 with a finer recurrence, data-dependent positions and MLPs; the hybrid has one layer of FoX after every
three of Gated DeltaNet (after every one at tiny, which has two layers). Left: loss inside the training context relative to FoX
(Pro), and the size of the state that a model keeps to decode 16,384 tokens. Right: the same loss by position. The table
also shows what other figures measured for these models. No claim is judged."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pydantic import TypeAdapter

from analysis.curves import LossCurve, context_losses, difference, first_plotted, stored_curves
from analysis.names import SEVEN, style_of
from analysis.needles import CHOICE, measures
from analysis.panels import band_note, position_axis
from analysis.seeds import scales_of, size_of
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, Files, about, millions, plt, publish, tokens
from analysis.tables import Cell, Column, Table, over_seeds, write_table
from analysis.training_curves import measured
from beyond.figures import generation, last_words, mqar
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox import context_use
from experiments.recipes import recipes
from models.spec import ModelSpec
from results.store import open_store

AXES = {"rope_base": float | None}
FOX = "fox_pro"
MODEL: TypeAdapter[ModelSpec] = TypeAdapter(ModelSpec)
DECODED = 16_384
LARGER_BASE = 5e6
BANDS = 16
SUCCESSORS = ("gated_linear_attention", "gated_delta_net", "kimi_delta_attention", "fox_hybrid", "path_fox",
              "wall_attention", "mamba3")  # fmt: skip


def runs(scale, seeds):
    yield from recipes(scale, (*SEVEN, "alibi_pro", "alibi", *SUCCESSORS), seeds)
    for model in ("transformer_pro", "transformer_llama"):
        how = dict(rope_base=LARGER_BASE)
        yield from recipes(scale, model, seeds, axes=how, label=f"RoPE base {LARGER_BASE:g}", model=how)


def name(curve: LossCurve) -> str:
    """Name a curve: its model, and its changes if there are any."""
    return style_of(curve.model).label + (f" with {curve.label}" if curve.axes else "")


def kept(study: Study, curve: LossCurve, length: int = DECODED) -> int:
    """Count the numbers in the state that a model keeps to decode a text of this length."""
    return _model(study.spec(curve.run_ids[0])).state_size(length)


def _model(spec: dict[str, Any]) -> ModelSpec:
    return MODEL.validate_json(json.dumps(spec["model"]))


def ranking(study: Study) -> tuple[LossCurve, list[LossCurve]]:
    """Return FoX (Pro), and all models, the best first. ValueError if FoX (Pro) is missing."""
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
    families = {kind: rows for kind, rows in families.items() if rows}
    heights = [len(rows) + 1.5 for rows in families.values()]
    shape: dict[str, Any] = dict(figsize=(WIDTH, 0.9 + 0.26 * sum(heights)), height_ratios=heights, width_ratios=(1, 1.2))
    figure, grid = plt.subplots(len(families), 2, squeeze=False, sharex="col", **shape)
    for (left, right), (kind, rows) in zip(grid, families.items(), strict=True):
        labels = [f"{name(c)}  {_size(kept(study, c))}".replace(" with ", "\nwith ") for c in rows]
        left.set_yticks(range(len(rows)), labels, linespacing=0.9)
        for axes in (left, right):
            axes.tick_params(labelsize=9)
        left.set(ylim=(len(rows) - 0.4, -0.6), title=kind)
        left.text(-0.04, 1, f"state at {tokens(DECODED)} (numbers)", transform=left.transAxes, ha="right", va="bottom")
        position_axis(right, train_len, fox.length, pieces=4, ylim=limits)
        left.axvline(0, color="#222222", linewidth=0.8)
        right.axhline(0, color="#222222", linewidth=0.8)
        for place, curve in enumerate(rows):
            _draw_one(left, right, place, curve, fox, tables[curve])
    grid[-1][0].set(xlabel="loss above FoX (Pro), nats")
    grid[0][1].set(title="and by position")
    grid[-1][1].set(xlabel="Token index $i$")
    mean = (
        f"left: mean over the training context of {tokens(train_len)}, bars: 95% (documents by source, and seeds); state: the "
        f"numbers kept to decode {DECODED:,} tokens, no parameters"
    )
    cut = "" if table["behind"].dropna().between(*limits).all() else "curves that leave the frame go on outside"
    seeds = band_note(len(curve.seeds) for curve in curves).split(", bands")[0]
    files = write_table(summary(study), study.folder / "tables" / study.stem)
    return [*publish(study, figure, table, mean, cut, seeds), *files]


def _draw_one(left: Axes, right: Axes, place: int, curve: LossCurve, fox: LossCurve, along: pd.DataFrame) -> None:
    """Draw a model: its mean in its own row, and its curve, which is identified by its marker."""
    style, fill = style_of(curve.model), "none" if curve.axes else "full"
    same: dict[str, Any] = dict(color=style.colour, marker=style.marker, fillstyle=fill)
    whole = Estimate(0.0, 0.0) if curve is fox else difference(curve, fox)
    left.hlines(place, *(whole.interval or (whole.effect, whole.effect)), color=style.colour, linewidth=1.8)
    left.plot(whole.effect, place, **same, markersize=6.5)
    if curve is not fox:
        every = max(1, len(along) // 4)
        at, some = (along["first"] + along["last"]) / 2, (place % every, every)
        (drawn,) = right.plot(at, along["behind"], **same, linewidth=1.5, markersize=5, markevery=some)
        drawn.set_dashes((1.0, 1.0) if curve.axes else style.dashes or (None, None))


def _size(count: int) -> str:
    return millions(count) if count >= 1e6 else f"{count / 1e3:.0f}k"


def _along(curve: LossCurve, fox: LossCurve) -> pd.DataFrame:
    """Return how far `curve` is behind FoX (Pro) in each band of positions, with a 95% interval (NaN if not known)."""
    edges = np.append(0, fox.ends_K) if len(fox.ends_K) else np.unique(np.linspace(0, fox.length, BANDS + 1).astype(int))
    rows = []
    for first, last in pairwise(edges.tolist()):
        apart = Estimate(0.0) if curve is fox else difference(curve, fox, first + 1, last)
        rows.append((first + 1, last, apart.effect, *(apart.interval or (np.nan, np.nan))))
    return pd.DataFrame(rows, columns=["first", "last", "behind", "low", "high"])


Measures = Iterator[tuple[Column, dict[str, Any]]]
"""Columns with another figure's results, by model."""


def _more_context(study: Study) -> Measures:
    found = context_losses(study)
    first = next(iter(found.values()))
    start, end = first.inside[-1], int(first.contexts_C[-1])
    column = Column("more_context", f"same tokens, {tokens(start)} to {tokens(end)} of context", 4, "lower", "signed")
    if end > start:
        yield column, {model: context_use.change(losses, start, end) for model, losses in found.items()}


def _needles(study: Study) -> Measures:
    found = measures(study).get(CHOICE)
    if found is None:
        return
    for mode in found.modes:
        rows = {model: found.of(model=model, mode=mode, high=study.train_len) for model in found.labels}
        column = Column(f"needle_{mode}", f"{mode} needle, chosen of ten (%)", 1, "higher")
        yield column, {model: found.mean_of(own) for model, own in rows.items()}


def _last_words(study: Study) -> Measures:
    found = last_words.last_words(study)
    right = {model: last_words.compare("right", (1.0, own)) for model, own in found.items()}
    yield Column("words", "last words (%)", 1, "higher"), right


def _recall(study: Study) -> Measures:
    for keys, own in mqar.shares(study).items():
        cells = {str(model): each.to_numpy() for model, each in own.dropna().groupby("model")}
        yield Column(f"keys_{keys}", f"{keys} keys recalled (%)", 1, "higher"), cells


def _speed(study: Study) -> Measures:
    rows = measured(study, FOX)
    column = Column("steps", f"training steps, {rows['machine'].iloc[0]} (tokens/s)", 0)
    yield column, dict(zip(rows["model"], rows["tokens_per_s"], strict=True))


def _decoding(study: Study) -> Measures:
    rows = generation.timed(study).query("seq_len == seq_len.max() and batch_size == 1 and cache == 'whole'")
    column = Column("decoding", f"decoding after {tokens(rows['seq_len'].iloc[0])}, {rows['machine'].iloc[0]} (tokens/s)", 0)
    yield column, dict(zip(rows["model"], rows["tokens_per_s"], strict=True))


TRAINED = ("context_use", "fig4_needle", "last_words")
"""Figures that measured these very trainings."""
ELSEWHERE = {
    "context_use": ("more context", _more_context), "fig4_needle": ("needles", _needles),
    "last_words": ("last words", _last_words), "mqar": ("recall", _recall),
    "table6_throughput": ("training speed", _speed), "generation": ("decoding speed", _decoding),
}  # fmt: skip
"""Figures that measured some of these models: what, and the columns of it."""


@lru_cache(maxsize=8)
def elsewhere(study: Study) -> dict[str, list[tuple[Column, dict[str, Any]]]]:
    """Return what other figures have stored for the models drawn here; nothing for figures that cannot be read."""
    found: dict[str, list[tuple[Column, dict[str, Any]]]] = {}
    runs, models = {line.run_id for line in study.lines}, {line.model for line in study.lines if not line.axes}
    for stem, (what, read) in ELSEWHERE.items():
        found[what] = []
        with suppress(ValueError):  # nothing is stored, or drawing that figure reports the error
            other = Study(study.results_dir, study.scale, stem)
            own = models - {line.model for line in other.lines if stem in TRAINED and line.run_id not in runs}
            cells = [(column, {model: each[model] for model in each if model in own}) for column, each in read(other)]
            found[what] = [each for each in cells if each[1]]
    return found


def absent(study: Study, curves: Iterable[LossCurve]) -> str:
    """Count the models that are missing in each figure, if there are any."""
    there = elsewhere(study).items()
    without = [what for c in curves for what, own in there if c.axes or all(c.model not in cells for _, cells in own)]
    return ", ".join(f"{what} {count}" for what, count in Counter(without).items())


def tried(study: Study, curves: Sequence[LossCurve]) -> list[tuple[float, ...]]:
    """Return the peak learning rates at which each model was trained, at all scales of the size."""
    size = size_of(study.results_dir, study.scale)
    stores = [open_store(study.results_dir, scale) for scale in scales_of(study.results_dir, size)]
    specs = [record["spec"] for store in stores for own in store.runs.values() for record in own]
    own = [_model(study.spec(curve.run_ids[0])) for curve in curves]
    alike = [[each for each in specs if each["model"]["kind"] == model.kind and _model(each) == model] for model in own]
    return [tuple(sorted({each["train"]["peak_lr"] for each in found})) for found in alike]


def rates(study: Study, curves: Sequence[LossCurve]) -> str:
    """Say at which peak learning rates each model was trained, at all scales of the size, and if equally many were tried."""
    by_rates: dict[tuple[float, ...], list[str]] = {}
    for curve, found in zip(curves, tried(study, curves), strict=True):
        by_rates.setdefault(found, []).append(name(curve))
    parts = [f"{', '.join(map('{:g}'.format, found))}: {', '.join(by_rates[found])}" for found in sorted(by_rates)]
    counts = {len(found) for found in by_rates}
    alike = "one each, none was tuned here" if counts == {1} else "the same effort for all"
    return f"Peak learning rates tried ({alike if len(counts) == 1 else 'not the same effort for all'}): {'; '.join(parts)}."


def summary(study: Study) -> Table:
    """Tabulate all models, the best first, relative to FoX (Pro) and to the row above; 95% intervals in square brackets."""
    fox, curves = ranking(study)
    there = [each for own in elsewhere(study).values() for each in own]
    columns = [
        Column("loss", "loss (nats)", 4, "lower"), Column("behind_fox", "above FoX (Pro)", 4, style="signed"),
        Column("behind_next", "above the row before", 4, style="signed"), Column("seeds", "seeds", 0),
        Column("kept", f"kept at {tokens(DECODED)} (millions)", 2), *(column for column, _ in there),
    ]  # fmt: skip
    values: dict[str, list[Cell]] = {}
    fewer = []
    for curve, before in zip(curves, (None, *curves), strict=False):
        behind = None if curve is fox else difference(curve, fox)
        above = None if before is None else difference(curve, before)
        beside = {column.title: None if curve.axes else cells.get(curve.model) for column, cells in there}
        own = [curve.inside, behind, above, len(curve.seeds), kept(study, curve) / 1e6]
        values[name(curve)] = [*own, *beside.values()]
        counts = {what: cell.seeds for what, cell in beside.items() if isinstance(cell, Estimate)}
        fewer += [f"{name(curve)}, {what}, {count}" for what, count in counts.items() if count < len(curve.seeds)]
    notes = (
        f"{about(study)} Mean over {tokens(study.train_len)} tokens of context. "
        "Two rows whose difference has an interval with 0 in it cannot be told apart.",
        rates(study, curves),
        f"Models without a measurement (a dash or no column): {missing}." if (missing := absent(study, curves)) else "",
        f"With fewer seeds: {'; '.join(fewer)}." if fewer else "",
    )
    return over_seeds("Loss beside FoX (Pro), and what other figures measured", columns, values, " ".join(filter(None, notes)))
