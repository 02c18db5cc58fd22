"""Eviction: what a FoX can let go from its cache for good.

Forget gates only fall along the sequence. Once the decay between a key and a query lies below the threshold of adaptive
computation pruning (arXiv 2504.06949), no later query sees that key either. Every head lets go key by key, and a query loses
less than e^`log_tolerance` of its probability. The threshold is that of a text of context_len tokens; where the model has no
QK-norm it rests on the norms of that text's queries and keys, those to come included.

Rows, documents, layers and heads 0-based, -1: not of one. keys: those that remain after `position` tokens, of every head, mean
over documents. bytes: of the keys, values and gates that remain (gates in their own precision: the models' cache keeps their
running sums, in float64), of every document; bytes_of_all: of all keys and values, what a Transformer of the same shape keeps.
Of every document loss and loss_evicted (mean nats per token, computed alike). Of every head dropped: the largest probability
that a query of document 0 loses."""

from typing import Literal

import pandas as pd

from eval.pruning.spec import PrunedSpec, by_place
from models.spec_parts import PositiveInt, strict

QUANTITIES = ("keys", "bytes", "bytes_of_all", "loss", "loss_evicted", "dropped")


@strict
class Spec(PrunedSpec):
    """Keys that a trained FoX lets go from its cache for good, the bytes that remain, and what becomes of the loss."""

    kind: Literal["cache_eviction"] = "cache_eviction"
    depths: PositiveInt = 16
    """Places of a document, evenly apart, at which the keys that remain are counted."""

    SCHEMA = by_place(QUANTITIES)

    def __post_init__(self) -> None:
        if self.depths > self.context_len:
            raise ValueError(f"depths {self.depths} must be at most context_len {self.context_len}")

    @property
    def positions(self) -> list[int]:
        """The tokens after which keys are counted, the whole document last."""
        return [self.context_len * place // self.depths for place in range(1, self.depths + 1)]

    def tokens_read(self) -> list[tuple[int, int]]:
        return [((2 * self.num_documents + 1) * self.context_len, self.context_len)]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        values = rows[rows["position"].isin((-1, self.context_len))].groupby("quantity")["value"]
        mean, dropped = values.mean(), values.max()["dropped"]
        return [
            f"  after {self.context_len} tokens {mean['keys'] / self.context_len:.3f} of 1 keys remain: "
            f"{mean['bytes'] / 2**20:.2f} MiB; a Transformer keeps {mean['bytes_of_all'] / 2**20:.2f}",
            f"  loss {mean['loss']:.6f}, evicted {mean['loss_evicted']:.6f} nats per token; a query loses at most "
            f"{dropped:.1e} of its probability",
        ]
