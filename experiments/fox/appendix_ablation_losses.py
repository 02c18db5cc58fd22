"""Appendix F.1: per-token loss of the models of Table 3."""

from experiments.fox.table3_ablation import evals, runs  # noqa: F401

TITLE = "Per-token loss of the ablations"
PAPER = "Appendix F.1"
SHOWS = (
    "Per-token loss of the models of Table 3: parts added one by one to the LLaMA block, and left out one by one of the Pro "
    "block. The paper's own captions could not be obtained."
)
CLAIMS = ()
