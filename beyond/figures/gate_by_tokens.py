"""Beyond the papers: What the forget gate is worth, by training tokens.

Worth of the forget gate: loss of the Transformer minus that of FoX of the same architecture, within the training context, by
training tokens. In the paper (360M, 7.5B tokens) it is 0.03 nats in both blocks; in small models trained on few tokens it is
far more. A power law, worth = a tokens^-b, is fitted to each block and, unless the data refute it, extrapolated to 7.5B tokens
and compared with the paper's number. Laws fitted to fewer tokens are compared with measurements at more tokens. Not in the
paper, and no claim is judged."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.curves import difference, loss_curves
from analysis.names import DASHED, style_of
from analysis.panels import doublings_axis
from analysis.power_law import REFUTED, Law, Value, law_of
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, Files, about, millions, plt, publish, tokens
from analysis.tables import Column, Table, count_range
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox.gate_worth import BLOCKS, PAPERS_BUDGET, papers
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at, with_shorter

SIZES = {TINIES: (1 / 4, 1 / 2, 1), MINIS: (1 / 4, 1 / 2, 1, 2), PAPERS: (1 / 4, 1 / 2, 1)}
"""Training tokens, as multiples of the scale's."""
AXES = {"train_tokens": int}
PAPERS_TOKENS = 7.5e9
PLACES = 60
"""Number of points at which a law is drawn."""
UNKNOWN: Value = (math.nan, math.nan, math.nan)


def runs(scale, seeds):
    """If a scale of the same models has one of these numbers of tokens, use it as it is: other figures share its runs."""
    whole = {at.train_tokens: at for at in with_shorter(scale)}
    for share in sizes_at(scale, SIZES, __name__):
        count, warmup = (
            round(share * each / scale.batch_tokens) * scale.batch_tokens for each in (scale.train_tokens, scale.warmup_tokens)
        )
        at, label = whole.get(count), f"{millions(count)} tokens"
        train = {} if at else dict(train_tokens=count, warmup_tokens=warmup)
        for pair in BLOCKS:
            yield from recipes(at or scale, pair, seeds, axes=dict(train_tokens=count), label=label, train=train)


def worths(study: Study) -> dict[tuple[str, str], dict[int, Estimate]]:
    """Return the gate's worth in nats for each pair, by training tokens in ascending order. ValueError if no pair is stored."""
    curves = {(each.model, each.axes["train_tokens"]): each for each in loss_curves(study) if each.length >= each.train_len}
    found = {}
    for fox, other in BLOCKS:
        counts = sorted(count for model, count in curves if model == fox and (other, count) in curves)
        found[fox, other] = {count: difference(curves[other, count], curves[fox, count]) for count in counts}
    if not any(found.values()):
        raise ValueError(f"{study.stem}: no pair of runs with and without a forget gate is stored; run its experiment first")
    return found


def laws(study: Study) -> list[Law | None]:
    """Return the law of each pair, fitted to everything stored."""
    return [law_of(own) for own in worths(study).values()]


def _followed(law: Law | None, count: float) -> Value:
    """Return the worth that a law predicts at other training tokens; unknown if the law is refuted."""
    return law.at(count) if law and not law.refuted else UNKNOWN


def _refuted(found: Mapping[tuple[str, str], Mapping[int, Estimate]]) -> list[str]:
    """Say for which blocks no law fits."""
    every = {BLOCKS[pair][1]: law_of(own) for pair, own in found.items()}
    return [f"no power law fits the {block} block ({law.fit})" for block, law in every.items() if law and law.refuted]


def foretold(own: Mapping[int, Estimate], count: float) -> Law | None:
    """Return the law fitted to fewer training tokens than `count`."""
    return law_of({fewer: worth for fewer, worth in own.items() if fewer < count})


def _value(worth: Estimate | None) -> Value:
    return (worth.effect, *(worth.interval or UNKNOWN[1:])) if worth else UNKNOWN


def points(study: Study) -> pd.DataFrame:
    """Return the drawn points: block, kind (measured, law unless refuted, paper), training tokens, and worth with its 95%
    interval."""
    found, printed = worths(study), papers()
    counts = [PAPERS_TOKENS, *(count for own in found.values() for count in own)]
    places = sorted({*counts, *np.geomspace(min(counts), max(counts), PLACES).tolist()})
    rows: list[tuple[str, str, float, float, float, float]] = []
    for pair, own in found.items():
        block, law = BLOCKS[pair][1], law_of(own)
        rows += [(block, "measured", count, *_value(worth)) for count, worth in own.items()]
        rows += [(block, "law", place, *law.at(place)) for place in places] if law and not law.refuted else []
        rows.append((block, "paper", PAPERS_TOKENS, *_value(Estimate(printed[pair]))))
    return pd.DataFrame(rows, columns=["block", "what", "train_tokens", "value", "low", "high"])


def draw(study: Study) -> Files:
    drawn, found = points(study), worths(study)
    measured = drawn.loc[drawn["what"] == "measured", "high"]
    value = drawn["value"].to_numpy()
    limits = value[value > 0].min() / 2.5, 1.3 * float(np.nanmax([*value, *measured]))
    ends = drawn["train_tokens"].min() / 1.3, max(1e10, 1.3 * drawn["train_tokens"].max())
    figure, row = plt.subplots(1, 2, figsize=(WIDTH, 3.5), sharey=True)
    for axes, (pair, (_, block)) in zip(row, BLOCKS.items(), strict=True):
        _panel(axes, drawn[drawn["block"] == block], limits, style_of(pair[0]).colour)
        if (law := law_of(found[pair])) and law.refuted:
            axes.text(0.97, 0.96, f"no power law fits:\n{law.fit}", transform=axes.transAxes, ha="right", va="top")
        doublings_axis(axes, map(round, _ticks(*ends, (1,) if ends[1] > 100 * ends[0] else (1, 2, 5))), millions)
        axes.set(title=f"{block} block", xlabel="training tokens", xlim=ends, ylim=limits, yscale="log")
    ticks = _ticks(*limits, (1, 2, 5))
    row[0].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    row[0].minorticks_off()
    row[0].set_ylabel("worth of the forget gate (nats):\nloss of the Transformer minus FoX's")
    seeds = [worth.seeds for own in found.values() for worth in own.values()]
    notes = (
        f"mean over the training context of {tokens(study.train_len)}",
        f"{count_range(seeds, 'seeds' if max(seeds) > 1 else 'seed')} of each model",
        "points: measured, with 95% intervals over documents by source, and seeds; lines: law, dashed where extrapolated",
    )
    return publish(study, figure, drawn, *notes)


def _ticks(low: float, high: float, steps: tuple[int, ...]) -> list[float]:
    """Return the multiples `steps` of powers of ten between two ends."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]


def _panel(axes: Axes, own: pd.DataFrame, limits: tuple[float, float], colour: str) -> None:
    """Draw one block: measurements, their law, dashed where extrapolated, and the paper's number."""
    measured, law, paper = (own[own["what"] == what] for what in ("measured", "law", "paper"))
    if not law.empty:
        x = law["train_tokens"]
        axes.fill_between(x, law["low"].clip(*limits), law["high"].clip(*limits), color=colour, alpha=0.2, linewidth=0)
        within = law[x.between(measured["train_tokens"].min(), measured["train_tokens"].max())]
        axes.plot(within["train_tokens"], within["value"], color=colour)
        axes.plot(x, law["value"], color=colour, dashes=DASHED, zorder=1.9)
    bars = [measured["value"] - measured["low"], measured["high"] - measured["value"]]
    axes.errorbar(measured["train_tokens"], measured["value"], bars, color=colour, linestyle="", marker="o", markersize=5)
    ((at, value),) = paper[["train_tokens", "value"]].to_numpy()
    axes.plot(at, value, color="black", marker="D", fillstyle="none", markersize=6, linestyle="")
    axes.annotate(
        "paper,\n" + PAPERS_BUDGET.removesuffix(" tokens"), (at, value), (0, 7), textcoords="offset points", ha="right"
    )


def summary(study: Study) -> Table:
    """Tabulate one line per number of tokens, with the paper's last; 95% intervals in square brackets."""
    found = worths(study)
    columns = [Column(key, f"{name} block (nats)", 3, style="signed") for key, name in BLOCKS.values()]
    columns += [Column(f"{key}_law", f"{name} block, by the law", 3, style="signed") for key, name in BLOCKS.values()]
    columns.append(Column("seeds", "fewest seeds", 0))
    cells: dict[str, list[Value]] = {}
    seeds: dict[str, int | None] = {}
    for count in sorted({count for own in found.values() for count in own}):
        there = [own.get(count) for own in found.values()]
        before = [foretold(own, count) for own in found.values()]
        cells[f"{millions(count)} tokens"] = [*map(_value, there), *(_followed(law, count) for law in before)]
        seeds[f"{millions(count)} tokens"] = min(each.seeds for each in there if each)
    every = laws(study)
    printed = [_value(Estimate(value)) for value in papers().values()]
    cells[f"the paper, {PAPERS_BUDGET}"] = [*printed, *(_followed(law, PAPERS_TOKENS) for law in every)]
    rows = {label: [*(value for value, _, _ in own), seeds.get(label)] for label, own in cells.items()}
    ranges = {
        label: [*(None if math.isnan(low) else (low, high) for _, low, high in own), None] for label, own in cells.items()
    }
    note = (
        f"{about(study)} "
        "In square brackets: 95% intervals, for measurements over documents by source and seeds (of fewer than "
        "three pooled over repeated trainings). The law, worth = a tokens^-b, is fitted to the measurements at all smaller "
        "numbers of tokens (in the paper's line to all), and no number is given if they refute it "
        f"(p < {REFUTED}){''.join(f'; {words}' for words in _refuted(found))}. Its interval follows from theirs, as if their "
        "noise were independent, and is wider if they deviate from the law by more than noise. Beyond the most training "
        "tokens the law is an extrapolation, and the paper's model is a different one, of 360M parameters. Peak learning "
        "rates are the same at all numbers of tokens."
    )
    caption = f"log P({tokens(study.train_len)}) of the Transformer minus FoX's, by training tokens"
    return Table(caption, columns, rows, note, ranges=ranges)
