"""Table 1: perplexities and short-context downstream tasks, zero-shot, all seven models."""

from experiments.evaluations import short_tasks as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MODELS

TITLE = "Short-context downstream tasks"
PAPER = "Table 1"
SHOWS = (
    "Zero-shot results of the LM evaluation harness. FoX (Pro) has the best average and both lowest perplexities; FoX is "
    "ahead of the Transformer of the same architecture, and Pro ahead of LLaMA, in nearly all columns."
)
CLAIMS = ("C17", "C18", "C19")


def runs(scale, seeds):
    for model in MODELS:
        yield from recipes(scale, model, seeds)
