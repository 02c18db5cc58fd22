"""Appendix F.7: Figure 5's runs with the standard needle."""

from experiments.evaluations import loss, needles
from experiments.fox.fig5_tokens_and_lr import runs  # noqa: F401

TITLE = "Training tokens and learning rate, standard needle"
PAPER = "Appendix F.7"
SHOWS = "Figure 5 in the needle test's standard mode. The paper's own captions could not be obtained."
CLAIMS = ()


def evals(scale):
    return loss(scale) + needles(scale, modes=("standard",))
