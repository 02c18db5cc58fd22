"""Decoding: speed and memory of a trained model that continues held-out text, token by token.

`cache`: how a model reads what it has seen. whole: all of it. pruned: a FoX leaves out keys that its gates have left nothing of
(arXiv 2504.06949), in reading the prompt, too. evicting: a FoX with QK-norm lets go of such keys for good. A FoX is decoded in
every way that it can be, another model whole. On a GPU a step is a CUDA graph, but for models whose states have no fixed place
(models/cache.py).

Times are of the steps between two tokens of Hugging Face's `generate`, its own work included, without the first few, in which
kernels are tuned and the graph is made. `cache_bytes`: of all states after the last token."""

from dataclasses import replace
from typing import Annotated, Literal, Self

import pandas as pd

from eval.shell.heldout import HeldoutSpec
from eval.shell.spec import Content, LogTolerance, Once, Setting
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number, text

CACHES = ("whole", "pruned", "evicting")
FIRST = 8
"""Steps that are not counted."""


@strict
class Spec(HeldoutSpec):
    """Speed and memory of decoding after held-out text, by its length and the number of sequences at a time."""

    kind: Literal["decoding"] = "decoding"
    lengths: Annotated[tuple[PositiveInt, ...], Once]
    """Tokens of a text, the new ones included."""
    batch_sizes: Annotated[tuple[PositiveInt, ...], Once] = (1,)
    """Sequences at a time: each begins as another document."""
    new_tokens: PositiveInt = 64
    """Tokens that are decoded."""
    repeats: PositiveInt = 2
    """Continuations that are timed, after one that is not."""
    log_tolerance: LogTolerance = -10.0
    """Log of the share of its probability that a query may lose by pruning."""
    machine: Content = None
    """GPU, or CPU and its cores: another machine's timing is another evaluation."""

    SCHEMA = Schema(
        {
            "cache": text(CACHES),
            "seq_len": integer(1),
            "batch_size": integer(1),
            # new tokens of the whole batch in a second: median over the steps, and quantiles of 20% and 80%
            **dict.fromkeys(("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high"), number(0)),
            "prefill_tokens_per_s": number(0),
            "cache_bytes": integer(1),
            "peak_memory_gib": number(0, nullable=True),  # NaN on the CPU
            "machine": text(),
        },
        key=("cache", "seq_len", "batch_size"),
    )

    def __post_init__(self) -> None:
        if self.new_tokens <= FIRST + 1:
            raise ValueError(f"new_tokens {self.new_tokens}: the first {FIRST} steps do not count; ask for {FIRST + 2} or more")
        if not self.lengths or not self.batch_sizes:
            raise ValueError("name at least one length and one batch size")
        if min(self.lengths) <= self.new_tokens:
            raise ValueError(f"length {min(self.lengths)} leaves no prompt before {self.new_tokens} new tokens: ask for more")

    @property
    def extent(self) -> tuple[int, int]:
        return max(self.batch_sizes), max(self.lengths)

    def bound(self, setting: Setting) -> Self:
        return replace(super().bound(setting), machine=setting.machine)

    def tokens_read(self) -> list[tuple[int, int]]:
        texts = 3 * (1 + self.repeats) * sum(self.batch_sizes)  # of a FoX in all ways
        return [(texts * length, length) for length in self.lengths]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        found = []
        for _, row in rows.iterrows():
            low, speed, high = (f"{row[f'tokens_per_s{name}']:,.0f}" for name in ("_low", "", "_high"))
            what = f"  {row['cache']}, {row['seq_len']} tokens x {row['batch_size']}"
            found.append(f"{what}: {speed} tokens/s ({low} to {high}), cache {row['cache_bytes'] / 2**20:,.2f} MiB")
        return found
