"""Appendix F.7: Figure 5's runs with the standard needle."""

from pathlib import Path
from typing import Literal

from analysis.study import Study
from analysis.tables import Table
from experiments.evaluations import loss, needles
from experiments.fox import fig5_tokens_and_lr as figure5
from experiments.fox.fig5_tokens_and_lr import AXES, runs  # noqa: F401

TITLE = "Training tokens and learning rate, standard needle"
PAPER = "Appendix F.7"
SHOWS = "Figure 5 in the needle test's standard mode. The paper's own captions could not be obtained."


MODE: Literal["standard"] = "standard"


def evals(scale):
    return loss(scale) + needles(scale, modes=(MODE,))


def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    return figure5.draw(study, MODE)


def summary(study: Study) -> Table:
    return figure5.summary(study, MODE)
