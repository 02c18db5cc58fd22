"""What the forget gate is worth in place of RoPE, by learning rate and training tokens: a look into C8 to C12 and C16."""

from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import get_scale, with_shorter

TITLE = "What the forget gate is worth, by learning rate and training tokens"
PAPER = "beyond the paper"
SHOWS = (
    "In the paper's ablations (360M, 7.5B tokens) the forget gate in place of RoPE is worth 0.03 nats in both blocks. Where it "
    "is worth much more at a smaller scale (C8, C11, C12 and C16 fail then), either the learning rates do not suit the "
    "Transformer, or models that saw few tokens gain more from it. Not in the paper."
)
CLAIMS = ()


def runs(scale, seeds):
    grid = get_scale(scale.ablation)
    for model in ("fox_pro", "transformer_pro", "fox_llama", "transformer_llama"):
        for rate in grid.rates_of(model):
            axes = dict(train_tokens=grid.train_tokens, peak_lr=rate)
            label = f"{grid.train_tokens / 1e6:.3g}M tokens, LR {rate:g}"
            yield from recipes(grid, model, seeds, axes=axes, label=label, train=dict(peak_lr=rate))
        for at in with_shorter(scale):
            if at != grid:
                axes = dict(train_tokens=at.train_tokens)
                yield from recipes(at, model, seeds, axes=axes, label=f"{at.train_tokens / 1e6:.3g}M tokens")
