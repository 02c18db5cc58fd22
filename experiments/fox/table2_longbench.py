"""Table 2: the 14 English tasks of LongBench, all seven models."""

from experiments.evaluations import long_tasks as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MODELS

TITLE = "LongBench"
PAPER = "Table 2"
SHOWS = (
    "Fourteen long-context tasks. FoX and the Transformer of the same architecture are on par, Pro is ahead of LLaMA, and the "
    "recurrent models are well behind except on the two code tasks."
)
CLAIMS = ("C21", "C22")


def runs(scale, seeds):
    for model in MODELS:
        yield from recipes(scale, model, seeds)
