"""Appendix F.6: Extrapolation over model sizes, tokens and contexts.

The runs of Figure 6, evaluated beyond their training contexts. The paper's own captions could not be obtained."""

from functools import partial

import numpy as np

from analysis.names import title
from analysis.study import Study
from analysis.style import about
from analysis.tables import Cell, Column, Table, over_seeds
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox import fig6_scale
from experiments.fox.fig6_scale import AXES, panels_of, runs  # noqa: F401

TIMES = (1, 2, 4)
draw = partial(fig6_scale.draw, beyond=True)


def summary(study: Study) -> Table:
    """Perplexity at one, two and four times the training context length."""
    columns = [Column(f"ppl_{times}", f"P({times} x training length)", 3) for times in TIMES]
    values: dict[str, list[Cell]] = {}
    for curve in (curve for groups in panels_of(study).values() for curves in groups.values() for curve in curves):
        lengths = [times * curve.train_len for times in TIMES]
        found = [np.exp(curve.log_p(length)) if length <= curve.length else None for length in lengths]
        values[f"{curve.label}: {title(curve.model)}"] = found
    return over_seeds("Perplexity beyond the training context", columns, values, about(study, corpus=False))
