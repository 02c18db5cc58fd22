"""What evaluating the mean of a training's last weights changes; Figure 2 and all others evaluate those after the last step."""

from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import get_scale

TITLE = "Averaging the last weights"
PAPER = "beyond the paper"
SHOWS = (
    "The same trainings evaluated with their weights after the last step, and with the mean of the weights after each of the "
    "last steps, a share of all. Every other figure and table evaluates the former, unless it names a share (run --average). "
    "Each line is a training of its own. On a GPU two of one seed end as far apart as the sums in their kernels take them, but "
    "for those with run --deterministic; the intervals, over documents, do not hold this. Not in the paper."
)
CLAIMS = ()
SHARES = (0.05, 0.2)


def runs(scale, seeds):
    at = get_scale(scale.ablation)
    for model in ("fox_pro", "transformer_pro"):
        yield from recipes(at, model, seeds, label="last weights")
        for share in SHARES:
            axes, label = dict(averaged_share=share), f"mean over the last {share:.0%} of the steps"
            yield from recipes(at, model, seeds, axes=axes, label=label, train=axes)
