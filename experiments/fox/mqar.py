"""Multi-query associative recall, each key assigned and asked for once: attention with and without a gate, and states."""

from data.recall import RecallTask
from experiments.evaluations import key_recall as evals  # noqa: F401
from experiments.recipes import recipes

TITLE = "Multi-query associative recall"
PAPER = "beyond the paper"
SHOWS = (
    "Small models trained to answer with the value that a key was given, every key once (arXiv 2312.04927). What is kept of "
    "the keys is the whole text with attention, and a state of fixed size in the recurrent models. Not in the paper."
)
CLAIMS = ()


def runs(scale, seeds):
    grid = scale.recall
    sizes = dict(hidden_size=grid.hidden_size, num_layers=grid.num_layers)
    head, wide = grid.hidden_size // grid.num_heads, dict(mlp_width=2 * grid.hidden_size)
    attention = dict(**sizes, **wide, num_heads=grid.num_heads, initializer_range=grid.initializer_range)
    models = {
        "fox_pro": attention,
        "transformer_pro": attention,
        "mamba2": dict(hidden_size=grid.hidden_size, num_layers=2 * grid.num_layers, head_dim=head, ssm_state_size=head),
        "hgrn2": dict(**sizes, **wide, expand_ratio=head),
        "delta_net": dict(**sizes, **wide, head_dim=head),
    }
    for num_keys in grid.once:
        task = RecallTask(num_keys=num_keys, num_assignments=1, num_queries=1, num_symbols=max(num_keys, grid.num_symbols))
        tokens = grid.batch_size * task.seq_len
        train = dict(seq_len=task.seq_len, batch_tokens=tokens, train_tokens=grid.num_steps * tokens,
                     warmup_tokens=grid.num_steps // 10 * tokens, peak_lr=grid.peak_lr)  # fmt: skip
        for name, model in models.items():
            axes, label = dict(num_keys=num_keys), f"{num_keys} keys"
            yield from recipes(scale, name, seeds, axes=axes, label=label, model=model, train=train, task=task)
