"""Figure 5: FoX (Pro) trained on more and fewer tokens and at several learning rates: loss and easy needles."""

from experiments.evaluations import loss, needles
from experiments.recipes import recipes
from experiments.scales import with_shorter

TITLE = "Extrapolation against training tokens and learning rate"
PAPER = "Figure 5"
SHOWS = (
    "Easy-mode needle heatmaps and per-token loss of FoX (Pro) for other numbers of training tokens and other learning rates. "
    "Length extrapolation is fragile: more tokens can make it worse, depending on the learning rate, while the loss inside the "
    "training context improves. The paper does not say which settings it shows; these are ours."
)
CLAIMS = ("C24",)


def runs(scale, seeds):
    for at in with_shorter(scale):
        for rate in scale.rates:
            axes = dict(train_tokens=at.train_tokens, peak_lr=rate)
            label = f"{at.train_tokens / 1e6:.4g}M tokens, LR {rate:g}"
            yield from recipes(at, "fox_pro", seeds, axes=axes, label=label, train=dict(peak_lr=rate))


def evals(scale):
    return loss(scale) + needles(scale, modes=("easy",))
