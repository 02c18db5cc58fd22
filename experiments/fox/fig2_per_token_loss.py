"""Figure 2: per-token loss and perplexity against position, all seven models, at four times the training length."""

from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MODELS

TITLE = "Long-context language modelling"
PAPER = "Figure 2"
SHOWS = (
    "Left: per-token loss against the position of the token. Right: perplexity against the length of the context. "
    "FoX lies below the Transformer of the same architecture inside and beyond the training context, and keeps "
    "improving up to its end; the recurrent models stop improving; Pro beats LLaMA. Beyond the training context the "
    "Transformers with RoPE break down soon, FoX degrades gently."
)
CLAIMS = ("C1", "C2", "C3", "C4", "C5", "C6")


def runs(scale, seeds):
    for model in MODELS:
        yield from recipes(scale, model, seeds)
