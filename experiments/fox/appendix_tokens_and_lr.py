"""Appendix F.7: Training tokens and learning rate, standard needle.

Figure 5 in the needle test's standard mode. The paper's own captions could not be obtained."""

from functools import partial

from experiments.evaluations import loss, needles
from experiments.fox import fig5_tokens_and_lr as figure5
from experiments.fox.fig5_tokens_and_lr import AXES, runs  # noqa: F401

draw, summary = (partial(figure, mode="standard") for figure in (figure5.draw, figure5.summary))


def evals(scale):
    return loss(scale) + needles(scale, modes=("standard",))
