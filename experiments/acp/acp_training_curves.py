"""Training loss with and without pruning, from the runs of the ACP paper's Table 1."""

from experiments.acp.acp_quality import runs  # noqa: F401
from experiments.evaluations import curve as evals  # noqa: F401

TITLE = "Training loss with and without pruning"
PAPER = "ACP, loss curves"
SHOWS = "Training loss of FoX (Pro) with and without pruning, and the difference. The curves coincide within noise."
CLAIMS = ()
