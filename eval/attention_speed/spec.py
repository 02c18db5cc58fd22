"""Attention speed (ACP): times with and without adaptive computation pruning.

What pruning saves is in the gates that a model has learned and in the text, so fresh weights or random tokens would not do.
`attention_forward` and `attention` (forward + backward) are sums over the layers of what each is given in a pass over the text;
`step` is forward, backward and optimiser. Comparable on one machine, as ratios."""

from dataclasses import replace
from typing import Literal, Self

import pandas as pd

from eval.shell.heldout import HeldoutSpec
from eval.shell.spec import Content, LogTolerance, Setting
from models.spec_parts import NonNegativeInt, PositiveInt, strict
from results.schema import Schema, integer, number, text


@strict
class Spec(HeldoutSpec):
    """Time of attention and of training steps with and without adaptive computation pruning, of a trained FoX (ACP)."""

    kind: Literal["attention_speed"] = "attention_speed"
    seq_len: PositiveInt
    """Tokens of each document."""
    batch_size: PositiveInt = 1
    """First documents of the held-out split."""
    warmup: NonNegativeInt = 2
    """Repeats that do not count."""
    repeats: PositiveInt = 5
    log_tolerance: LogTolerance = -10.0
    """log(eps) of the pruning."""
    machine: Content = None
    """GPU, or CPU and its cores."""
    rule: Literal["tight"] | None = None
    """Rule of the pruning; None: the model's own, which is ACP's where it was trained without."""

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

    def bound(self, setting: Setting) -> Self:
        return replace(super().bound(setting), machine=setting.machine)

    def tokens_read(self) -> list[tuple[int, int]]:
        passes = 2 * (self.warmup + self.repeats) * 3
        return [(passes * self.batch_size * self.seq_len, self.seq_len)]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        times = rows.pivot(index="quantity", columns="pruned", values="milliseconds")
        return [f"  {quantity}: {each[0]:.2f} ms, pruned {each[1]:.2f} ms" for quantity, each in times.iterrows()]
