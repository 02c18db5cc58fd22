"""The learning rates tried for every model, as the paper did before its main experiments (Table 5)."""

from experiments.evaluations import curve, loss
from experiments.recipes import recipes
from experiments.scales import MODELS, get_scale

TITLE = "Learning rates"
PAPER = "Table 5"
SHOWS = (
    "The paper chose each model's peak learning rate on the grid {1, 2, 5} x 10^i: 2e-3 for FoX (Pro), Mamba-2 and HGRN2, 1e-3 "
    "for FoX (LLaMA), Transformer (Pro) and DeltaNet, 5e-4 for Transformer (LLaMA) at its main setting, and 2e-3 for all at "
    "360M and 125M."
)
CLAIMS = ("C31",)


def runs(scale, seeds):
    at = get_scale(scale.ablation)
    for model in MODELS:
        for rate in at.rates_of(model):
            axes, label = dict(peak_lr=rate), f"{model}, LR {rate:g}"
            yield from recipes(at, model, seeds, axes=axes, label=label, train=axes)


def evals(scale):
    """Losses, and the trainings' curves: high rates may be worse because they are unstable."""
    return loss(scale) + curve(scale)
