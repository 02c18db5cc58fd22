"""RULER's single-needle tasks, which the papers do not have: S-NIAH 1 to 3 inside and beyond the training length."""

from experiments.evaluations import ruler_tasks as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MODELS

TITLE = "RULER, single needles"
PAPER = "beyond the paper"
SHOWS = (
    "S-NIAH 1 to 3 of RULER, through the LM evaluation harness: a magic number among repeated sentences, a number in text, a "
    "UUID in text. Not in the paper; the examples are of the harness's form, made here."
)
CLAIMS = ()


def runs(scale, seeds):
    for model in MODELS:
        yield from recipes(scale, model, seeds)
