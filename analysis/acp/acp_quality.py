"""Table 1 of the ACP paper: perplexity and downstream tasks of FoX (Pro) trained with and without pruning."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.acp.pruning import context_of
from analysis.curves import LossCurve, log_perplexity, loss_curves
from analysis.fox import table1_lm_eval as table1
from analysis.paper import paper_scores
from analysis.study import Study
from analysis.tables import Column, Table, over_seeds, write_table


def pairs(study: Study) -> list[tuple[LossCurve, LossCurve]]:
    """Losses with and without pruning, by training context."""
    curves = {curve.label: curve for curve in loss_curves(study)}
    both = [(curve, curves[f"un{label}"]) for label, curve in curves.items() if f"un{label}" in curves]
    return sorted(both, key=lambda pair: pair[0].train_len)


def summary(study: Study) -> Table:
    """The harness's table behind the held-out perplexity at each run's own training length."""
    curves = {curve.label: curve for curve in loss_curves(study)}
    perplexity = {label: np.exp(log_perplexity(curve.losses_SN)[:, curve.train_len - 1]) for label, curve in curves.items()}
    columns, values, note = table1.content(study)
    # Lines of several contexts are not ranked: each is to be set beside its own pair.
    columns = [Column("ppl", "P at the training length", 3), *(replace(column, better="") for column in columns)]
    labels = sorted(values, key=lambda label: (context_of(label), label.startswith("un")))
    rows = {label: [perplexity.get(label), *values[label]] for label in labels}
    printed = {} if table1.made_locally(study) else paper_scores(study.stem, "".join(study.scales))
    paper = {label: [printed[label].get(column.key) for column in columns] for label in labels if label in printed}
    return over_seeds("FoX (Pro) with and without adaptive computation pruning", columns, rows, note, paper)


def draw(study: Study) -> list[Path]:
    """Write tables/STEM.{md,tex,csv}."""
    return write_table(summary(study), study.folder / "tables" / study.stem)
