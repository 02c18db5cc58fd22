"""Appendix F.7: Figure 5 in standard mode."""

from pathlib import Path

from analysis.fox import fig5_tokens_and_lr as figure5
from analysis.study import Study
from analysis.tables import Table

MODE = "standard"


def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    return figure5.draw(study, MODE)


def summary(study: Study) -> Table:
    return figure5.summary(study, MODE)
