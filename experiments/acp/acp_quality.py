"""Table 1 of the ACP paper: FoX (Pro) trained with and without pruning at three context lengths."""

import math
from dataclasses import replace

import numpy as np

from analysis.curves import LossCurve, difference, fewest_seeds, log_perplexity, loss_curves
from analysis.harness import ahead, content, lines_by_label, made_locally
from analysis.paper import paper_scores
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import tokens
from analysis.tables import Column, Table, over_seeds
from analysis.verdict import PERPLEXITY, Claim, Comparison, Verdict, decide, number
from experiments.evaluations import loss, short_tasks
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at, with_shorter

TITLE = "Quality with and without adaptive computation pruning"
PAPER = "ACP, Table 1"
SHOWS = (
    "FoX (Pro) trained with and without pruning at three training contexts: held-out perplexity, and the LM evaluation "
    "harness. Pruning costs no quality: the differences are those of repeated trainings."
)
PRUNED, WHOLE = dict(prune_log_tolerance=-10.0), dict(prune_log_tolerance=None)
SIZES = {TINIES: (512, 1024), (*MINIS, *PAPERS): (4096, 8192, 16384)}
"""Training contexts; shorter ones than four of the kernels' tiles of 128 prune nothing."""


AXES = {"pruning": ("pruned", "unpruned"), "context": int}


def runs(scale, seeds, kinds=(("pruned", PRUNED), ("unpruned", WHOLE))):
    at = with_shorter(scale)[0]
    for length in sizes_at(at, SIZES, __name__):
        for name, model in kinds:
            axes, label = dict(pruning=name, context=length), f"{name}, context {length}"
            yield from recipes(at, "fox_pro", seeds, axes=axes, label=label, model=model, train=dict(seq_len=length))


def evals(scale):
    return loss(scale) + short_tasks(scale)


def pairs(study: Study) -> list[tuple[LossCurve, LossCurve]]:
    """Losses with and without pruning, by training context."""
    pruned, whole = (
        {curve.axes["context"]: curve for curve in loss_curves(study) if curve.axes["pruning"] == rule}
        for rule in ("pruned", "unpruned")
    )
    return [(pruned[context], whole[context]) for context in sorted(pruned.keys() & whole.keys())]


def summary(study: Study) -> Table:
    """The harness's table behind the held-out perplexity at each run's own training length."""
    curves = {curve.label: curve for curve in loss_curves(study)}
    perplexity = {label: np.exp(log_perplexity(curve.losses_SN)[:, curve.train_len - 1]) for label, curve in curves.items()}
    columns, values, note = content(study)
    # Lines of several contexts are not ranked: each is to be set beside its own pair.
    columns = [Column("ppl", "P at the training length", 3), *(replace(column, better="") for column in columns)]
    axes = {line.label: line.axes for line in study.lines}
    labels = sorted(values, key=lambda label: (axes[label]["context"], axes[label]["pruning"]))
    rows = {label: [perplexity.get(label), *values[label]] for label in labels}
    printed = {} if made_locally(study) else paper_scores(study.stem, "".join(study.scales))
    paper = {label: [printed[label].get(column.key) for column in columns] for label in labels if label in printed}
    return over_seeds("FoX (Pro) with and without adaptive computation pruning", columns, rows, note, paper)


LOSS_MARGIN = math.log1p(0.5 / 28.0)
"""0.5 of Wikitext's perplexity, at the paper's 28."""
WORD_MARGIN, AVERAGE_MARGIN = 0.5, 1.0
"""Ours, as is LOSS_MARGIN: a little more than the paper's models differ by with and without pruning (0.32 and 0.41)."""


def a6(study: Study) -> Verdict:
    """Held-out loss, Wikitext and the average of the tasks differ by less than their margins (two one-sided tests each)."""
    comparisons: list[Comparison] = []
    parts, absent = [], []
    found = pairs(study)
    for pruned, whole in found:
        change = difference(pruned, whole)
        comparisons += _within(f"P, {pruned.label} against not", change, LOSS_MARGIN, PERPLEXITY)
        parts.append(f"{number(change.effect, PERPLEXITY)} at context {tokens(pruned.train_len)}")
    if not found:
        absent.append("held-out losses with and without pruning")
    if made_locally(study):
        absent.append("the public benchmarks (the tasks here are stand-ins made from the held-out text)")
    else:
        lines = lines_by_label(study)
        for pruned, whole in found:
            if {pruned.label, whole.label} <= set(lines):
                one, other = lines[pruned.label], lines[whole.label]
                for column, margin, unit in (("wikitext_ppl", WORD_MARGIN, ""), ("avg_acc", AVERAGE_MARGIN, "points")):
                    comparisons += _within(f"{column}, {pruned.label} ahead of not", ahead(one, other, column), margin, unit)
            else:
                absent.append(f"all tasks at context {tokens(pruned.train_len)}")
    seeds = fewest_seeds(curve for pair in found for curve in pair)
    return decide(f"Held-out perplexity with pruning against without: {', '.join(parts)}.", comparisons, seeds, absent)


def _within(name: str, difference: Estimate, margin: float, unit: str) -> list[Comparison]:
    return [
        Comparison(name, difference, margin, below=True, unit=unit, size=margin),
        Comparison(name, difference, -margin, unit=unit, size=margin),
    ]


CLAIMS = (Claim("A6", "No loss of quality: losses coincide, Wikitext within 0.5, the average within 1 point", a6),)
