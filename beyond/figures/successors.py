"""Beyond the papers: FoX among its successors.

FoX compared with contemporary and later models, at equal tokens and nearly equal parameters. ALiBi is the gate as a fixed
decay, PaTH-FoX is FoX (LLaMA) with data-dependent position encoding, Wall attention has a forget gate for each channel of the
keys, Mamba-3 is Mamba-2 with a finer recurrence, data-dependent positions and MLPs; the hybrid has one layer of FoX after every
three of Gated DeltaNet (after every one at tiny, which has two layers). Left: loss inside the training context relative to FoX
(Pro), and the size of the state that a model keeps to decode 16,384 tokens. Right: the same loss by position. The table
also shows what other figures measured for these models. No claim is judged."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pydantic import TypeAdapter

from analysis.curves import LossCurve, context_losses, difference, first_plotted, stored_curves
from analysis.names import SEVEN, style_of, title
from analysis.needles import CHOICE, measures
from analysis.panels import band_note, position_axis
from analysis.seeds import scales_of, size_of
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, Files, about, millions, plt, publish, tokens
from analysis.tables import Cell, Column, Table, over_seeds, write_table
from analysis.training_curves import measured
from analysis.verdict import in_words, with_interval
from beyond.figures import generation, last_words, mqar
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox import context_use
from experiments.recipes import recipes
from models.spec import ModelSpec
from results.atomic import write_atomic
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
    told = "\n".join(f"1. {sentence}" for sentence in findings(study))
    files = write_table(summary(study), study.folder / "tables" / study.stem)
    write_atomic(files[0], f"{told}\n\n{files[0].read_text()}")
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


class Measure(NamedTuple):
    """A column with another figure's results: `cells` by model, and how many points each model is `behind` FoX (Pro)."""

    column: Column
    cells: dict[str, Any]
    behind: dict[str, Estimate]


def _more_context(study: Study) -> Iterator[Measure]:
    found = context_losses(study)
    first = next(iter(found.values()))
    start, end = first.inside[-1], int(first.contexts_C[-1])
    column = Column("more_context", f"same tokens, {tokens(start)} to {tokens(end)} of context", 4, "lower", "signed")
    if end > start:
        yield Measure(column, {model: context_use.change(losses, start, end) for model, losses in found.items()}, {})


def _needles(study: Study) -> Iterator[Measure]:
    if CHOICE not in (kinds := measures(study)):
        return
    found = kinds[CHOICE]
    for mode in found.modes:
        rows = {model: found.of(model=model, mode=mode, high=study.train_len) for model in found.labels}
        behind = {model: found.difference(rows[FOX], own) for model, own in rows.items() if FOX in rows and model != FOX}
        column = Column(f"needle_{mode}", f"{mode} needle, chosen of ten (%)", 1, "higher")
        yield Measure(column, {model: found.mean_of(own) for model, own in rows.items()}, behind)


def _last_words(study: Study) -> Iterator[Measure]:
    found, right = last_words.last_words(study), partial(last_words.compare, "right")
    behind = {m: right((1.0, found[FOX]), (-1.0, own)) for m, own in found.items() if FOX in found and m != FOX}
    yield Measure(Column("words", "last words (%)", 1, "higher"), {m: right((1.0, own)) for m, own in found.items()}, behind)


def _recall(study: Study) -> Iterator[Measure]:
    for keys, own in mqar.shares(study).items():
        cells: dict[str, Any] = {str(model): each.to_numpy() for model, each in own.dropna().groupby("model")}
        yield Measure(Column(f"keys_{keys}", f"{keys} keys recalled (%)", 1, "higher"), cells, {})


def _speed(study: Study) -> Iterator[Measure]:
    rows = measured(study, FOX)
    column = Column("steps", f"training steps, {rows['machine'].iloc[0]} (tokens/s)", 0)
    yield Measure(column, dict(zip(rows["model"], rows["tokens_per_s"], strict=True)), {})


def _decoding(study: Study) -> Iterator[Measure]:
    rows = generation.timed(study).query("seq_len == seq_len.max() and batch_size == 1 and cache == 'whole'")
    column = Column("decoding", f"decoding after {tokens(rows['seq_len'].iloc[0])}, {rows['machine'].iloc[0]} (tokens/s)", 0)
    yield Measure(column, dict(zip(rows["model"], rows["tokens_per_s"], strict=True)), {})


TRAINED = {"context_use": _more_context, "fig4_needle": _needles, "last_words": _last_words}
ELSEWHERE = TRAINED | {"mqar": _recall, "table6_throughput": _speed, "generation": _decoding}
"""Figures that measured some of these models: in these trainings, in others (on recall), or with untrained weights."""
SUBJECTS = {"context_use": "more context", "fig4_needle": "needles", "last_words": "last words", "mqar": "recall",
            "table6_throughput": "training speed", "generation": "decoding speed"}  # fmt: skip


@lru_cache(maxsize=8)
def elsewhere(study: Study) -> dict[str, list[Measure]]:
    """Return what other figures have stored for the models drawn here, by figure; nothing for figures that cannot be read."""
    found: dict[str, list[Measure]] = {}
    runs, models = {line.run_id for line in study.lines}, {line.model for line in study.lines if not line.axes}
    for stem, read in ELSEWHERE.items():
        found[stem] = []
        with suppress(ValueError):  # nothing is stored, or drawing that figure reports the error
            other = Study(study.results_dir, study.scale, stem)
            own = models - {line.model for line in other.lines if stem in TRAINED and line.run_id not in runs}
            for column, *both in read(other):
                cells, behind = ({model: each[model] for model in each if model in own} for each in both)
                found[stem] += [Measure(column, cells, behind)] if cells else []
    return found


def absent(study: Study, curves: Iterable[LossCurve]) -> str:
    """Count the models that are missing in each figure, if there are any."""
    without = [
        s for c in curves for s, own in elsewhere(study).items() if c.axes or all(c.model not in each.cells for each in own)
    ]
    return ", ".join(f"{SUBJECTS[stem]} {count}" for stem, count in Counter(without).items())


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
    there = [measure for own in elsewhere(study).values() for measure in own]
    columns = [
        Column("loss", "loss (nats)", 4, "lower"), Column("behind_fox", "above FoX (Pro)", 4, style="signed"),
        Column("behind_next", "above the row before", 4, style="signed"), Column("seeds", "seeds", 0),
        Column("kept", f"kept at {tokens(DECODED)} (millions)", 2), *(measure.column for measure in there),
    ]  # fmt: skip
    values: dict[str, list[Cell]] = {}
    fewer = []
    for curve, before in zip(curves, (None, *curves), strict=False):
        behind = None if curve is fox else difference(curve, fox)
        above = None if before is None else difference(curve, before)
        beside = {each.column.title: None if curve.axes else each.cells.get(curve.model) for each in there}
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


def _side(behind: Estimate) -> int:
    """Return 1 for ahead, -1 for behind, 0 if the two cannot be told apart."""
    return int(in_words(behind, "1", "-1", "0")) if behind.interval and behind.seeds_known else 0


def _by(behind: Estimate, unit: str = "nats") -> str:
    """Print how far apart two models are, with interval and seeds."""
    apart, digits = behind if behind.effect > 0 else behind.negative(), 3 if unit == "nats" else 1
    ends = ", ".join(f"{end:.{digits}f}" for end in apart.interval or ()).replace("-", "\N{MINUS SIGN}")
    return f"by {apart.effect:.{digits}f} {unit} [{ends or 'not known'}] ({apart.seeds} seed{'s' * (apart.seeds > 1)})"


def _placed(behind: Mapping[str, Estimate], unit: str = "nats") -> tuple[bool, str]:
    """Return whether FoX (Pro) is ahead of all others, and which are ahead of it, cannot be told from it, and are behind it."""
    order = sorted(behind, key=lambda each: behind[each].effect)
    ahead, level, last = ([each for each in order if _side(behind[each]) == side] for side in (1, 0, -1))
    if len(level) == len(order):
        return False, f"none of {len(order)} others can be told from FoX (Pro)"
    ends = dict.fromkeys(last[:1] + last[-1:])
    far, verb = {each: f"{each} {_by(behind[each], unit)}" for each in order}, "is" if len(last) == 1 else "are"
    parts = (
        f"ahead of FoX (Pro): {', '.join(far[each] for each in ahead)}"
        if ahead
        else "no model can be told to be ahead of FoX (Pro)",
        f"cannot be told from it: {', '.join(level)}" if level else "",
        f"{len(last)} {verb} behind it, {'from ' * (len(ends) > 1)}{' to '.join(far[each] for each in ends)}"
        if last
        else "none is behind it",
    )
    return not (ahead or level), "; ".join(filter(None, parts))


def findings(study: Study) -> list[str]:
    """Return sentences to take away, beginning with those least favourable to FoX (Pro) or to these rows' reliability.
    They are ranked: -1 if FoX (Pro) fails, 0 if it is not ahead of all others, 1 if it is."""
    fox, curves = ranking(study)
    rest, others = [curve for curve in curves if curve is not fox], elsewhere(study)
    alone, placed = _placed({name(curve): difference(curve, fox) for curve in rest})
    effort = {len(found) for found in tried(study, curves)}
    tuned = "one learning rate each, none tuned here" if effort == {1} else "learning rates tried: see the table"
    told: list[tuple[int, str]] = [
        (alone, f"Loss within the training context ({tokens(fox.train_len)} tokens; {tuned}): {placed}.")
    ]
    told += [_beyond(fox, rest), *_more_context_helps(others["context_use"]), *_retrieval(others)]
    told += [_state(study, fox, rest), _limits(study, curves)]
    return [sentence for _, sentence in sorted(told, key=lambda each: each[0])]


def _beyond(fox: LossCurve, rest: Iterable[LossCurve]) -> tuple[bool, str]:
    if fox.length == fox.train_len:
        return False, "Beyond the training context nothing was measured."
    alone, placed = _placed({name(curve): difference(curve, fox, fox.train_len + 1, fox.length) for curve in rest})
    return alone, f"Loss beyond the training context, up to {tokens(fox.length)} tokens: {placed}."


def _more_context_helps(given: Iterable[Measure]) -> Iterator[tuple[bool, str]]:
    for column, cells, _ in given:
        sides = {side: [model for model in cells if _side(cells[model]) == side] for side in (1, -1, 0)}
        names = {side: ", ".join(map(title, models)) for side, models in sides.items()}
        told = ", ".join(f"{verb} with {names[side]}" for side, verb in ((1, "a gain"), (-1, "a loss")) if names[side])
        level = f"for {names[0]} it cannot be told" if names[0] else ""
        own = f"; FoX (Pro): {with_interval(cells[FOX], 'nats')}" if FOX in cells else ""
        said = " is " + "; ".join(filter(None, (told, level))) if told else f": {level} whether it is a gain or a loss"
        yield FOX in sides[1], f"More context ({column.title}{own}){said}."


def _state(study: Study, fox: LossCurve, rest: Iterable[LossCurve]) -> tuple[bool, str]:
    apart = {curve: difference(curve, fox) for curve in rest}
    size = {curve: kept(study, curve) for curve in (fox, *apart)}
    parts = [f"To decode {DECODED:,} tokens FoX (Pro) keeps {_size(size[fox])} numbers"]
    for best in [curve for curve in apart if kept(study, curve, 2 * DECODED) == size[curve]][:1]:
        place = ("cannot be told from it, apart", "is ahead of it", "is behind it")[_side(apart[best])]
        parts.append(f"{name(best)}, the best with a state of fixed size, {_size(size[best])}, {place} {_by(apart[best])}")
    less = sorted((curve for curve in apart if size[curve] < size[fox] and _side(apart[curve]) >= 0), key=size.__getitem__)
    own = ", ".join(f"{name(curve)} ({_size(size[curve])})" for curve in less)
    parts.append(f"fewer, and not behind it: {own}" if less else "all that keep fewer are behind it")
    return not less, f"{'; '.join(parts)}."


def _retrieval(others: Mapping[str, list[Measure]]) -> Iterator[tuple[int, str]]:
    found = [each for own in others.values() for each in own if each.behind and FOX in each.cells]
    if others["mqar"]:
        yield _recalled(others["mqar"])
    for column, cells, behind in found:
        alone, placed = _placed({title(model): each for model, each in behind.items()}, "points")
        what = column.title.removesuffix(" (%)")
        yield alone, f"{what[0].upper()}{what[1:]} ({cells[FOX].effect:.1f}% with FoX (Pro)): {placed}."
    if not (others["mqar"] or found):
        yield False, "Of retrieval nothing was measured."


def _recalled(measures: Sequence[Measure]) -> tuple[int, str]:
    """Say what FoX (Pro) recalls, and which other models recall at least half of the most keys. Returns a rank with it: -1 if
    others do and FoX (Pro) does not, 0 if FoX (Pro) is not best, 1 if it is."""
    keys = [each.column.key.removeprefix("keys_") for each in measures]
    shares = [{model: float(np.mean(cell)) for model, cell in each.cells.items()} for each in measures]
    most, fox = shares[-1], [share.get(FOX, math.nan) for share in shares]
    able = sorted((model for model in most if most[model] >= 50 and model != FOX), key=lambda model: -most[model])
    own = ", ".join(f"{share:.1f}% of {count}" for count, share in zip(keys, fox, strict=True))
    names = ", ".join(f"{title(model)} {most[model]:.1f}%" for model in able) or "none"
    rank = -1 if able and not fox[-1] >= 50 else int(fox[-1] == max(most.values()))
    return rank, f"Keys recalled by small models trained to: FoX (Pro) {own}; others that recall half of {keys[-1]}: {names}."


def _limits(study: Study, curves: list[LossCurve]) -> tuple[bool, str]:
    once = sum(len(curve.seeds) == 1 for curve in curves)
    parts = [f"{once} of {len(curves)} models have one seed, and intervals by the spread of others"] if once else []
    parts += [f"measurements missing, by number of models: {missing}"] if (missing := absent(study, curves)) else []
    return (
        not parts,
        f"Not known: {'; '.join(parts) or 'nothing; all models have several seeds, and figures measured them all'}. Each "
        "model is compared alone, at 95%: of twenty that are as good as FoX (Pro) one is told apart by chance.",
    )
