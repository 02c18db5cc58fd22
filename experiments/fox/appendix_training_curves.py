"""Appendix F.9: training loss against tokens, all seven models."""

from experiments.evaluations import curve as evals  # noqa: F401
from experiments.fox.fig2_per_token_loss import runs  # noqa: F401

TITLE = "Training curves"
PAPER = "Appendix F.9"
SHOWS = "Training loss against tokens. The paper's own captions could not be obtained."
CLAIMS = ()
