"""ACP, pruning patterns: What adaptive computation pruning skips.

Share of attention's tiles that are skipped: by layer and head, over training, and by training context. It is about 70% overall,
and more in longer contexts; many heads are local and skip nearly everything. The paper's own figures could not be obtained;
this layout is ours."""

import math
from functools import partial

import numpy as np

from analysis.names import FOX_SHADES, LineStyle
from analysis.panels import ColourScale, Drawn, band_note, colour_bar, draw_lines, legend_of
from analysis.paper import read
from analysis.pruning import Skipped, skipped, tile_note
from analysis.statistics import Estimate, share
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.training_curves import KIND as CURVE
from analysis.verdict import SHARE, Claim, Comparison, Verdict, by_construction, decide
from experiments import evaluations
from experiments.acp.acp_quality import PRUNED
from experiments.acp.acp_quality import runs as pairs

AXES = {"pruning": ("pruned",), "context": int}
PAPERS_LINE = "the paper, 125M to 760M, 4k to 16k (about)"
PAPERS_SHARE = read("acp_headlines.csv")["tiles_skipped"]["low"]
COLOURS = ColourScale("viridis", 0.0, 1.0, "skipped")
ABOVE, LEAST = 0.9, 0.25
"""Our choices: the paper shows heads but does not count them."""


def runs(scale, seeds):
    return pairs(scale, seeds, (("pruned", PRUNED),))


def evals(scale):
    return evaluations.skipped(scale) + evaluations.curve(scale)


def draw(study: Study) -> Files:
    found = skipped(study)
    shades = [FOX_SHADES[place % len(FOX_SHADES)] for place in range(len(found))]
    styles = {
        each.label: LineStyle(f"context {tokens(each.context)}", shade) for each, shade in zip(found[::-1], shades, strict=True)
    }
    figure, (heads, spread, training) = plt.subplots(1, 3, figsize=(WIDTH, 2.7))
    _heads(heads, found[-1])
    colour_bar(figure, [heads], COLOURS)
    for each in found:
        ranked = np.sort(each.mean_H)[::-1]
        place = (np.arange(len(ranked)) + 0.5) / len(ranked)
        spread.plot(place, ranked, color=styles[each.label].colour, marker=".", markersize=3)
    draw_lines(training, [line for label, style in styles.items() if (line := _over_training(study, label, style))])
    training.axhline(PAPERS_SHARE, color="#555555", linestyle=(0, (4, 3)), linewidth=1.0)
    for axes, xlabel in ((spread, "heads, most pruned first (share of all)"), (training, "share of the training")):
        axes.set(xlabel=xlabel, ylabel="share of tiles skipped", ylim=(0, 1), xlim=(0, 1))
    legend_of(figure, list(styles.values()))
    columns = ["layer", "head", "label", "tiles_pruned", "keys_read", "dropped"]
    frames = [each.by_head.reset_index().assign(label=each.label)[columns] for each in found]
    marked = f"left: context {tokens(found[-1].context)}; dashed: about {PAPERS_SHARE} in the paper"
    return publish(study, figure, frames, marked, tile_note(found), band_note(study.seed_counts.values()))


def _heads(axes, each: Skipped) -> None:
    grid = each.by_head["tiles_pruned"].unstack()
    axes.grid(False)
    axes.pcolormesh(grid.to_numpy(), cmap=COLOURS.colours, vmin=0, vmax=1, edgecolors="white", linewidth=0.3)
    axes.set(xlabel="head", ylabel="layer", ylim=(len(grid), 0))
    for place, ticks in ((axes.set_xticks, grid.columns), (axes.set_yticks, grid.index)):
        step = max(1, len(ticks) // 6)
        place(np.arange(len(ticks))[::step] + 0.5, [str(int(tick) + 1) for tick in ticks[::step]])


def _over_training(study: Study, label: str, style: LineStyle) -> Drawn | None:
    """Return the skipped share that was measured during training; None if it was not measured."""
    runs = []
    for line, rows, _ in study.evaluations(CURVE):
        measured = rows.dropna(subset=["pruned_share"]) if "pruned_share" in rows else rows.iloc[:0]
        if line.label == label and len(measured):
            runs.append((measured["tokens"].to_numpy() / rows["tokens"].max(), measured["pruned_share"].to_numpy()))
    return Drawn(style, runs[0][0], np.stack([share for _, share in runs])) if runs else None


def summary(study: Study) -> Table:
    """Tabulate one line per training context."""
    columns = [
        Column("tiles_pruned", "tiles skipped (%)", 1),
        Column("above_90", "heads that skip more than 90% (%)", 1),
        Column("below_10", "heads that skip less than 10% (%)", 1),
        Column("keys_read", "keys read per decoded token (% of all)", 1),
        Column("loss_change", "loss, pruned minus not (nats, millionths)", 2, style="signed"),
        Column("decoded_change", "decoding, the same", 2, style="signed"),
        Column("dropped", "largest probability dropped (times e^-10)", 3),
    ]
    found, values = skipped(study), dict[str, list[Cell]]()
    for each in found:
        losses = each.losses
        change = 1e6 * float((losses["loss_pruned"] - losses["loss"]).mean())
        decoded = 1e6 * float((losses["decoded_loss_pruned"] - losses["decoded_loss"]).mean())
        above, below = (100 * float(is_so.mean()) for is_so in (each.mean_H > 0.9, each.mean_H < 0.1))
        keys = 100 * float(each.by_head["keys_read"].to_numpy().mean()) / each.context
        values[f"context {each.context}"] = [
            100 * each.share_SD.mean(axis=1), above, below, keys, change, decoded, largest_dropped(each)
        ]  # fmt: skip
    values[PAPERS_LINE] = [100 * PAPERS_SHARE, *[None] * (len(columns) - 1)]
    note = f"{about(study)} Each at its training context, {tile_note(found)}."
    return over_seeds("What pruning skips, and what it changes", columns, values, note)


def largest_dropped(each: Skipped) -> float:
    """Return the largest probability that a query of any head loses, as a multiple of the tolerance."""
    return float(each.by_head["dropped"].max() / np.exp(each.log_tolerance))


def a1(study: Study) -> Verdict:
    """The skipped share lies between 60% and 85% at every training context. A skipped tile is neither multiplied nor loaded, so
    the share is the same for FLOPs and memory accesses."""
    found, about = skipped(study), partial(Comparison, strict=False, unit=SHARE, paper="about 70%")
    comparisons, parts = [], []
    for each in found:
        name = f"tiles skipped at context {tokens(each.context)}"
        comparisons += [about(name, each.share, 0.6, size=0.1)]
        comparisons += [about(name, each.share, 0.85, below=True, size=0.15, ceiling=True)]
        parts.append(f"{each.share.effect:.1%} at {tokens(each.context)}")
    return decide(f"Skipped: {', '.join(parts)} (tiles of {found[-1].tile}).", comparisons)


def a7(study: Study) -> Verdict:
    """No query of any head loses e^-10 of its probability, as measured in double precision."""
    found = skipped(study)
    within = partial(Comparison, bound=1.0, below=True, unit="times e^-10")
    comparisons = [
        within(f"largest probability dropped at context {tokens(each.context)}", Estimate(largest_dropped(each), 0.0))
        for each in found
    ]
    largest = max(float(each.by_head["dropped"].max()) for each in found)
    sentence = f"At most {largest:.1e} of a query's probability is dropped (the bound is {math.exp(-10):.1e})."
    why = "Pruning only removes what is below the bound: only a mistake in the code could violate it."
    return by_construction(decide(sentence, comparisons), why)


def a8(study: Study) -> Verdict:
    """At the longest training context, at least a quarter of the heads skip more than 90% of tiles, and at least a tenth less
    than half. Heads are treated as a sample of those of other trainings, since chance decides which head becomes local."""
    each = skipped(study)[-1]
    local, wide, seeds = each.mean_H > ABOVE, each.mean_H < 0.5, len(each.share_SD)
    more, less, where = f"more than {ABOVE:.0%}", "less than half", f"at context {tokens(each.context)}"
    comparisons = [
        Comparison(f"heads that skip {more} of tiles {where}", _share_of(local, seeds), LEAST, strict=False, unit=SHARE),
        Comparison(f"heads that skip {less} of tiles {where}", _share_of(wide, seeds), 0.1, strict=False, unit=SHARE),
    ]
    sentence = (
        f"Of {len(local)} heads {where} {local.sum()} skip {more} and {wide.sum()} {less}; standard deviation over heads "
        f"{each.mean_H.std():.2f}."
    )
    return decide(sentence, comparisons)


def _share_of(is_so: np.ndarray, seeds: int) -> Estimate:
    """Return a share of heads with its binomial error."""
    mean, count = float(is_so.mean()), len(is_so)
    return share(Estimate(mean, math.sqrt(mean * (1 - mean) / count), seeds=seeds), count, 1.0)


CLAIMS = (
    Claim("A1", "Pruning removes about 70% of attention's FLOPs and memory accesses (60 to 85%)", a1),
    Claim("A7", "A query loses less than e^-10 of its probability", a7),
    Claim("A8", "Many heads are local: the shares of heads are widely spread, many above 90%", a8),
)
