"""Decoding: speed and memory of a trained model that continues held-out text, token by token.

`cache`: the keys that a step reads. whole: all of them. pruned: a FoX skips keys that its gates have decayed to nothing (arXiv
2504.06949), in the prefill, too. evicting, in stored rows alone: a FoX removed such keys from the cache. A FoX is measured with
both, other models with `whole`. On a GPU a step is a CUDA graph, except for models whose states have no fixed place
(models/cache.py).

Times are those between two tokens of Hugging Face's `generate`, including its overhead, without the first few steps, in which
kernels are tuned and the graph is captured. `cache_bytes`: size of all states after the last token."""

from typing import Annotated, Literal

import pandas as pd

from eval.runner.heldout import HeldoutSpec
from eval.runner.spec import Content, LogTolerance, Once
from eval.throughput.spec import FIRST
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number, text

CACHES = ("whole", "pruned", "evicting")


@strict
class Spec(HeldoutSpec):
    """Speed and memory of decoding after held-out text, by length and batch size."""

    kind: Literal["decoding"] = "decoding"
    lengths: Annotated[tuple[PositiveInt, ...], Once]
    """Tokens of a text, including the new ones."""
    batch_sizes: Annotated[tuple[PositiveInt, ...], Once] = (1,)
    """Sequences per batch, each the beginning of a different document."""
    new_tokens: PositiveInt = 64
    """Number of decoded tokens."""
    repeats: PositiveInt = 2
    """Timed continuations, after an untimed one."""
    log_tolerance: LogTolerance = -10.0
    """Log of the share of its attention probability that a query may lose by pruning."""
    machine: Content = None
    """GPU, or CPU and its cores; a timing on another machine is another evaluation."""

    SCHEMA = Schema(
        {
            "cache": text(CACHES),
            "seq_len": integer(1),
            "batch_size": integer(1),
            # new tokens per second of the whole batch: median over the steps, and quantiles of 20% and 80%
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
        if min(self.lengths) <= self.new_tokens + 1:  # BOS and one token of the text
            raise ValueError(f"length {min(self.lengths)} leaves no prompt before {self.new_tokens} new tokens: ask for more")

    @property
    def extent(self) -> tuple[int, int]:
        return max(self.batch_sizes), max(self.lengths)

    def tokens_read(self) -> list[tuple[int, int]]:
        texts = 2 * (1 + self.repeats) * sum(self.batch_sizes)  # a FoX with both caches
        return [(texts * length, length) for length in self.lengths]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        found = []
        for _, row in rows.iterrows():
            low, speed, high = (f"{row[f'tokens_per_s{name}']:,.0f}" for name in ("_low", "", "_high"))
            what = f"  {row['cache']}, {row['seq_len']} tokens x {row['batch_size']}"
            found.append(f"{what}: {speed} tokens/s ({low} to {high}), cache {row['cache_bytes'] / 2**20:,.2f} MiB")
        return found
