"""Pruning (ACP, arXiv 2504.06949): how much it skips in a trained FoX, and its effect on the loss.

Rows: documents, layers and heads are 0-based; -1 means none in particular. Per head and document: tiles_pruned (skipped share
of the causal tiles) and keys_read (mean number of keys read per decoded token); for document 0 also dropped (largest
attention probability that a query loses) and first_tile (first key tile that query tile `position` computes). Per document:
loss and loss_pruned (mean nats per token in one pass), decoded_loss and decoded_loss_pruned (of the last tokens, decoded one
by one from the cache)."""

from typing import Literal

import pandas as pd

from eval.runner.heldout import HeldoutSpec
from eval.runner.spec import LogTolerance
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number, text

QUANTITIES = (
    *("tiles_pruned", "dropped", "keys_read", "first_tile"),  # of a head
    *("loss", "loss_pruned", "decoded_loss", "decoded_loss_pruned"),  # of a document
)


def by_place(quantities: tuple[str, ...]) -> Schema:
    """Return the schema of one row per quantity and place (document, head, position)."""
    place = ("document", "layer", "head", "position")
    columns = {"quantity": text(quantities), **dict.fromkeys(place, integer(-1)), "value": number(0)}
    return Schema(columns, key=("quantity", *place))


@strict
class PrunedSpec(HeldoutSpec):
    """Base of evaluations of the keys that a FoX can skip."""

    context_len: PositiveInt
    """Tokens of each document."""
    num_documents: PositiveInt = 8
    """Number of documents, the first of the held-out split."""
    log_tolerance: LogTolerance = -10.0
    """log(eps) of the pruning: log of the share of its attention probability that a query may lose."""

    GATED = True

    @property
    def extent(self) -> tuple[int, int]:
        return self.num_documents, self.context_len


@strict
class Spec(PrunedSpec):
    """Share of attention that adaptive computation pruning skips in a trained FoX, and its effect on the loss (ACP)."""

    kind: Literal["pruning"] = "pruning"
    tile: PositiveInt = 128
    """Side of a tile in tokens: 128 as in the kernels; smaller tiles are for contexts of a few hundred tokens."""
    decoded_tokens: PositiveInt = 32
    """Tokens at the end of each document that are decoded from the cache."""
    rule: Literal["tight"] | None = None
    """Pruning rule; None: the model's own, or ACP's if it was trained without pruning."""

    SCHEMA = by_place(QUANTITIES)

    def __post_init__(self) -> None:
        if self.decoded_tokens >= self.context_len:
            raise ValueError(f"decoded_tokens {self.decoded_tokens} must be below context_len {self.context_len}")

    def tokens_read(self) -> list[tuple[int, int]]:
        return [(4 * self.num_documents * self.context_len, self.context_len)]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        values = rows.groupby("quantity")["value"]
        mean, largest = values.mean(), values.max()
        return [
            f"  tiles pruned: {mean['tiles_pruned']:.3f} of 1; keys read per decoded token: {mean['keys_read']:.1f}",
            f"  loss {mean['loss']:.6f}, pruned {mean['loss_pruned']:.6f} nats per token; a query loses at most "
            f"{largest['dropped']:.1e} of its probability",
        ]
