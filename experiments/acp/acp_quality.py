"""ACP, Table 1: Quality with and without adaptive computation pruning.

Held-out perplexity and LM evaluation harness scores of FoX (Pro) trained with and without pruning at three training contexts.
Pruning costs no quality: differences are as small as between repeated trainings."""

import math
from dataclasses import replace

import numpy as np

from analysis.curves import LossCurve, difference, loss_curves
from analysis.harness import ahead, column_title, content, lines_of, made_locally
from analysis.paper import paper_scores
from analysis.study import Study
from analysis.style import tokens
from analysis.tables import Column, Table, over_seeds
from analysis.verdict import PERPLEXITY, Claim, Comparison, Verdict, decide, number, on_par
from experiments.evaluations import loss, short_tasks
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at, with_shorter

PRUNED, WHOLE = dict(prune_log_tolerance=-10.0), dict(prune_log_tolerance=None)
SIZES = {TINIES: (512, 1024), (*MINIS, *PAPERS): (4096, 8192, 16384)}
"""Training contexts; below four of the kernels' tiles of 128, nothing can be pruned."""
AXES = {"pruning": ("pruned", "unpruned"), "context": int}
LOSS_MARGIN = math.log1p(0.5 / 28.0)
"""0.5 of Wikitext's perplexity, at the paper's 28."""
WORD_MARGIN, AVERAGE_MARGIN = 0.5, 1.0
"""Our choices, like LOSS_MARGIN: slightly above the paper's differences between pruned and unpruned models (0.32 and 0.41)."""


def runs(scale, seeds, kinds=(("pruned", PRUNED), ("unpruned", WHOLE))):
    at = with_shorter(scale)[0]
    for length in sizes_at(at, SIZES, __name__):
        for name, model in kinds:
            axes, label = dict(pruning=name, context=length), f"{name}, context {length}"
            yield from recipes(at, "fox_pro", seeds, axes=axes, label=label, model=model, train=dict(seq_len=length))


def evals(scale):
    return loss(scale) + short_tasks(scale)


def pairs(study: Study) -> list[tuple[LossCurve, LossCurve]]:
    """Return pairs of losses with and without pruning, by training context."""
    found = {(curve.axes["pruning"], curve.axes["context"]): curve for curve in loss_curves(study)}
    contexts = sorted(context for rule, context in found if rule == "pruned" and ("unpruned", context) in found)
    return [(found["pruned", context], found["unpruned", context]) for context in contexts]


def summary(study: Study) -> Table:
    """Tabulate the held-out perplexity at each run's own training length, followed by the harness's scores."""
    perplexity = {curve.label: np.exp(curve.log_p(curve.train_len)) for curve in loss_curves(study)}
    columns, values, note = content(study)
    # Lines of several contexts are not ranked: each should only be compared with its own pair.
    columns = [Column("ppl", "P at the training length", 3), *(replace(column, better="") for column in columns)]
    axes = {line.label: line.axes for line in study.lines}
    labels = sorted(values, key=lambda label: (axes[label]["context"], axes[label]["pruning"]))
    rows = {label: [perplexity.get(label), *values[label]] for label in labels}
    printed = {} if made_locally(study) else paper_scores(study.stem, "".join(study.scales))
    paper = {label: [printed[label].get(column.key) for column in columns] for label in labels if label in printed}
    return over_seeds("FoX (Pro) with and without adaptive computation pruning", columns, rows, note, paper)


def a6(study: Study) -> Verdict:
    """Held-out loss, Wikitext and the tasks' average differ by less than their margins (two one-sided tests each)."""
    found, local = pairs(study), made_locally(study)
    lines = {} if local else lines_of(study, by="label")
    losses, tasks = list[Comparison](), list[Comparison]()
    parts, absent = [], [] if found else ["held-out losses with and without pruning"]
    absent += ["the public benchmarks (the tasks here are stand-ins made from the held-out text)"] if local else []
    for pruned, whole in found:
        change, context = difference(pruned, whole), tokens(pruned.train_len)
        losses += on_par(f"P({context}), pruned against not", change, LOSS_MARGIN, PERPLEXITY)
        parts.append(f"{number(change.effect, PERPLEXITY)} at context {context}")
        if {pruned.label, whole.label} <= set(lines):
            for column, margin, unit in (("wikitext_ppl", WORD_MARGIN, ""), ("avg_acc", AVERAGE_MARGIN, "points")):
                lead = ahead(lines[pruned.label], lines[whole.label], column)
                tasks += on_par(f"{column_title(column)}, {pruned.label} ahead of not", lead, margin, unit)
        elif not local:
            absent.append(f"all tasks at context {context}")
    sentence = f"Held-out perplexity with pruning against without: {', '.join(parts)}."
    return decide(sentence, [*losses, *tasks], absent)


CLAIMS = (Claim("A6", "No loss of quality: losses coincide, Wikitext within 0.5, the average within 1 point", a6),)
