"""Appendix F.7: Figure 5's runs with the standard needle."""

from functools import partial

from experiments.evaluations import loss, needles
from experiments.fox import fig5_tokens_and_lr as figure5
from experiments.fox.fig5_tokens_and_lr import AXES, runs  # noqa: F401

TITLE = "Training tokens and learning rate, standard needle"
PAPER = "Appendix F.7"
SHOWS = "Figure 5 in the needle test's standard mode. The paper's own captions could not be obtained."
draw, summary = (partial(figure, mode="standard") for figure in (figure5.draw, figure5.summary))


def evals(scale):
    return loss(scale) + needles(scale, modes=("standard",))
