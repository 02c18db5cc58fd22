"""Figure 6: FoX against the Transformer over model sizes, training tokens and training context lengths."""

from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import get_scale, with_shorter

TITLE = "Model size, training tokens and training context"
PAPER = "Figure 6"
SHOWS = (
    "Per-token loss inside the training context, for other model sizes, numbers of training tokens and training context "
    "lengths (at the same tokens per step). FoX's advantage grows with the training context and shrinks somewhat with "
    "size. The paper leaves open which architecture and which contexts it shows; here it is the Pro pair."
)
CLAIMS = ("C25", "C25b")

PAIR = ("fox_pro", "transformer_pro")


def runs(scale, seeds):
    for model in PAIR:
        for size in map(get_scale, scale.sizes):
            name = f"{size.hidden_size} x {size.num_layers}"
            yield from recipes(size, model, seeds, axes=dict(size=name), label=f"size {name}")
        for at in with_shorter(scale):
            axes = dict(tokens=at.train_tokens)
            yield from recipes(at, model, seeds, axes=axes, label=f"tokens {at.train_tokens / 1e6:.4g}M")
        at = get_scale(scale.ablation)
        for seq_len in scale.training_contexts:
            axes = dict(context=seq_len)
            yield from recipes(at, model, seeds, axes=axes, label=f"context {seq_len}", train=dict(seq_len=seq_len))
