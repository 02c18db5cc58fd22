"""Attention speed (ACP): times with and without adaptive computation pruning.

How much pruning saves depends on the learned gates and on the text, so a trained model and real text are needed.
`attention_forward` and `attention` (forward + backward) are sums over the layers, each timed on its inputs in a pass over the
text; `step` is forward, backward and optimiser. Only ratios on one machine are comparable."""

from typing import Literal

import pandas as pd

from eval.runner.heldout import HeldoutSpec
from eval.runner.spec import Content, LogTolerance
from models.spec_parts import NonNegativeInt, PositiveInt, strict
from results.schema import Schema, integer, number, text


@strict
class Spec(HeldoutSpec):
    """Time of a trained FoX's attention and training steps with and without adaptive computation pruning (ACP)."""

    kind: Literal["attention_speed"] = "attention_speed"
    seq_len: PositiveInt
    """Tokens of each document."""
    batch_size: PositiveInt = 1
    """Number of documents, the first of the held-out split."""
    warmup: NonNegativeInt = 2
    """Untimed repeats before the timed ones."""
    repeats: PositiveInt = 5
    log_tolerance: LogTolerance = -10.0
    """log(eps) of adaptive computation pruning."""
    machine: Content = None
    """GPU, or CPU and its cores."""
    rule: Literal["tight"] | None = None
    """Pruning rule; None: the model's own, or ACP's if it was trained without pruning."""

    GATED = True
    SCHEMA = Schema(
        {
            "quantity": text(("attention_forward", "attention", "step")),
            "pruned": integer(0, 1),
            # median, and 20% and 80% quantiles over the repeats
            **dict.fromkeys(("milliseconds", "milliseconds_low", "milliseconds_high"), number(0)),
            "tokens": integer(1),
            "machine": text(),
        },
        key=("quantity", "pruned"),
    )

    @property
    def extent(self) -> tuple[int, int]:
        return self.batch_size, self.seq_len

    def tokens_read(self) -> list[tuple[int, int]]:
        passes = 2 * (self.warmup + self.repeats) * 3
        return [(passes * self.batch_size * self.seq_len, self.seq_len)]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        times = rows.pivot(index="quantity", columns="pruned", values="milliseconds")
        return [f"  {quantity}: {each[0]:.2f} ms, pruned {each[1]:.2f} ms" for quantity, each in times.iterrows()]
