"""Table 4: sizes and optimisation of all seven models, read off the models and specs of the runs."""

from experiments.evaluations import parts as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MODELS

TITLE = "Models and hyperparameters"
PAPER = "Table 4"
SHOWS = (
    "Layers, widths, heads, peak learning rate and training tokens of every model. In the paper 760M has 24 blocks of width "
    "1536, 360M 24 of 1024, 125M 12 of 768; heads of 64 for FoX and, at 760M, of 128 for the Transformer."
)
CLAIMS = ()


def runs(scale, seeds):
    for model in MODELS:
        yield from recipes(scale, model, seeds[:1])
