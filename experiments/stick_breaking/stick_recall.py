"""Repeated associative recall: a synthetic task on which the last of several values of a key is asked for."""

from data.recall import RecallTask
from experiments.evaluations import key_recall as evals  # noqa: F401
from experiments.recipes import recipes

TITLE = "Repeated associative recall"
PAPER = "Stick-breaking: synthetic task"
SHOWS = (
    "Models of two layers are trained to answer with the value that a key was given last; keys are assigned repeatedly. "
    "Stick-breaking, which takes the nearest match first, is better at it than softmax with RoPE."
)
CLAIMS = ("S7",)


def runs(scale, seeds):
    grid = scale.recall
    for num_keys in grid.num_keys:
        task = RecallTask(num_keys=num_keys, num_assignments=grid.num_assignments, num_queries=grid.num_queries,
                          num_symbols=grid.num_symbols)  # fmt: skip
        tokens = grid.batch_size * task.seq_len
        model = dict(hidden_size=grid.hidden_size, num_layers=grid.num_layers, num_heads=grid.num_heads,
                     mlp_width=2 * grid.hidden_size, initializer_range=grid.initializer_range)  # fmt: skip
        train = dict(seq_len=task.seq_len, batch_tokens=tokens, train_tokens=grid.num_steps * tokens,
                     warmup_tokens=grid.num_steps // 10 * tokens, peak_lr=grid.peak_lr)  # fmt: skip
        for name in ("stick_breaking", "transformer_llama", "fox_llama"):
            axes, label = dict(num_keys=num_keys), f"{num_keys} keys"
            yield from recipes(scale, name, seeds, axes=axes, label=label, model=model, train=train, task=task)
