"""Eviction: keys that a FoX can remove from its cache permanently.

Decay only accumulates along the sequence. Once the decay between a key and a query lies below the threshold of adaptive
computation pruning (arXiv 2504.06949), no later query sees that key either. Every head evicts single keys, and a query loses
less than e^`log_tolerance` of its attention probability. The threshold is that of a text of context_len tokens; if the model
has no QK-norm, it depends on the norms of all queries and keys of that text, including future ones.

Rows: documents, layers and heads are 0-based; -1 means none in particular. Per head, keys: the keys that remain after
`position` tokens, mean over documents. Per document, bytes: of the remaining keys, values and gates (gates in their own
precision; the models' cache keeps their running sums in float64). bytes_of_all: of all keys and values, as a Transformer of the
same shape keeps. Per document, loss and loss_evicted: mean nats per token, computed alike. Per head, dropped: the largest
probability that a query of document 0 loses."""

from typing import Literal

import pandas as pd

from eval.pruning.spec import PrunedSpec, by_place
from models.spec_parts import PositiveInt, strict

QUANTITIES = ("keys", "bytes", "bytes_of_all", "loss", "loss_evicted", "dropped")


@strict
class Spec(PrunedSpec):
    """Keys that a trained FoX can evict from its cache permanently, the bytes that remain, and the effect on the loss."""

    kind: Literal["cache_eviction"] = "cache_eviction"
    depths: PositiveInt = 16
    """Number of evenly spaced positions of a document at which the remaining keys are counted."""

    SCHEMA = by_place(QUANTITIES)

    def __post_init__(self) -> None:
        if self.depths > self.context_len:
            raise ValueError(f"depths {self.depths} must be at most context_len {self.context_len}")

    @property
    def positions(self) -> list[int]:
        """Numbers of tokens after which keys are counted; the last is the whole document."""
        return [self.context_len * place // self.depths for place in range(1, self.depths + 1)]

    def tokens_read(self) -> list[tuple[int, int]]:
        return [((2 * self.num_documents + 1) * self.context_len, self.context_len)]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        values = rows[rows["position"].isin((-1, self.context_len))].groupby("quantity")["value"]
        mean, dropped = values.mean(), values.max()["dropped"]
        return [
            f"  after {self.context_len} tokens a share of {mean['keys'] / self.context_len:.3f} of the keys remains, "
            f"{mean['bytes'] / 2**20:.2f} MiB; a Transformer keeps {mean['bytes_of_all'] / 2**20:.2f} MiB",
            f"  loss {mean['loss']:.6f}, evicted {mean['loss_evicted']:.6f} nats per token; a query loses at most "
            f"{dropped:.1e} of its probability",
        ]
