"""Appendix F.4: per-token loss of the models of Tables 8 and 9."""

from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox.fig2_per_token_loss import draw, summary  # noqa: F401
from experiments.fox.table8_lm_eval import runs  # noqa: F401

TITLE = "Per-token loss with windowed and hybrid models"
PAPER = "Appendix F.4"
SHOWS = (
    "Per-token loss and perplexity of Samba and Transformer-SWA beside the models with full attention. The paper's own "
    "captions could not be obtained."
)
