"""Appendix F.5: the easy needle in texts of up to four times the training length."""

from experiments.evaluations import long_needles as evals  # noqa: F401
from experiments.fox.fig4_needle import draw, summary  # noqa: F401
from experiments.recipes import recipes

TITLE = "Needle in longer texts"
PAPER = "Appendix F.5"
SHOWS = (
    "The easy needle of FoX (Pro) and Transformer (Pro) up to 65,536 tokens, four times the training context. The released "
    "code draws such a grid; its cells are not known, so these are eleven lengths at the paper's depths."
)


def runs(scale, seeds):
    for model in ("fox_pro", "transformer_pro"):
        yield from recipes(scale, model, seeds)
