"""Stick-breaking's length extrapolation: trained at one context length, evaluated to sixteen times as much."""

from experiments.evaluations import extrapolation as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import get_scale

TITLE = "Length extrapolation of stick-breaking attention"
PAPER = "Stick-breaking: length extrapolation"
SHOWS = (
    "Stick-breaking attention without position encoding, softmax with RoPE, FoX and ALiBi (the forget gate, fixed), all in the "
    "LLaMA block. The paper trains 350M parameters at 2,048 tokens: stick-breaking's perplexity falls up to 16,384, that of "
    "softmax with RoPE does not."
)
CLAIMS = ("S1", "S2", "S3", "S4", "S6")


def runs(scale, seeds):
    at = get_scale(scale.extrapolation)
    for model in ("stick_breaking", "transformer_llama", "fox_llama", "alibi"):
        yield from recipes(at, model, seeds)
