"""Figure 4: needle in a haystack, easy and standard mode, all seven models, up to twice the training length."""

from experiments.evaluations import needles as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MODELS

TITLE = "Needle in a haystack"
PAPER = "Figure 4"
SHOWS = (
    "Scores from 1 (red) to 10 (green) by depth of the needle and length of the context; easy mode left, standard mode right. "
    "FoX is near perfect within the training context in both modes, the Transformers in easy mode; the recurrent models do "
    "poorly. FoX and Transformer (Pro) extrapolate partly beyond the training context, Transformer (LLaMA) does not."
)
CLAIMS = ("C22b", "C22c", "C23")


def runs(scale, seeds):
    for model in MODELS:
        yield from recipes(scale, model, seeds)
