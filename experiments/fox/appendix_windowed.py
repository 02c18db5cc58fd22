"""Appendix F.4: Per-token loss with windowed and hybrid models.

Per-token loss and perplexity of Samba and Transformer-SWA, compared with models with full attention and Mamba-2. The paper's
own captions could not be obtained."""

from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox.fig2_per_token_loss import draw, summary  # noqa: F401
from experiments.fox.table8_lm_eval import runs  # noqa: F401
