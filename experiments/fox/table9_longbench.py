"""Table 9: LongBench for the models of Table 8."""

from experiments.evaluations import long_tasks as evals  # noqa: F401
from experiments.fox.table8_lm_eval import runs  # noqa: F401

TITLE = "LongBench, with windowed and hybrid models"
PAPER = "Table 9"
SHOWS = (
    "Fourteen long-context tasks at 760M parameters and 16B tokens. Samba and Transformer-SWA, whose attention sees 2,048 "
    "tokens, are well behind FoX (Pro) and Transformer (Pro) except on the two code tasks."
)
CLAIMS = ("C24b",)
