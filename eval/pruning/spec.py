"""Pruning (ACP, arXiv 2504.06949): what it skips in a trained FoX, and that it changes nothing.

Rows, documents, layers and heads 0-based, -1: not of one. Of every head and document: tiles_pruned (share of the causal tiles
that is skipped) and keys_read (keys touched per decoded token, mean); of document 0 also dropped (largest probability that a
query loses) and first_tile (the first key tile that query tile `position` computes). Of every document: loss and loss_pruned
(mean nats per token of one pass), decoded_loss and decoded_loss_pruned (of the last tokens, one by one from the cache)."""

from typing import Literal

import pandas as pd

from eval.shell.heldout import HeldoutSpec
from eval.shell.spec import LogTolerance
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number, text

QUANTITIES = (
    *("tiles_pruned", "dropped", "keys_read", "first_tile"),  # of a head
    *("loss", "loss_pruned", "decoded_loss", "decoded_loss_pruned"),  # of a document
)


def by_place(quantities: tuple[str, ...]) -> Schema:
    """Return the schema of rows one a quantity and place: a document, a head, a position."""
    place = ("document", "layer", "head", "position")
    columns = {"quantity": text(quantities), **dict.fromkeys(place, integer(-1)), "value": number(0)}
    return Schema(columns, key=("quantity", *place))


@strict
class PrunedSpec(HeldoutSpec):
    """Fields that evaluations of what a FoX need not read share."""

    context_len: PositiveInt
    """Tokens of each document."""
    num_documents: PositiveInt = 8
    """First documents of the held-out split."""
    log_tolerance: LogTolerance = -10.0
    """log(eps) of the pruning: of the share of its probability that a query may lose."""

    GATED = True

    @property
    def extent(self) -> tuple[int, int]:
        return self.num_documents, self.context_len


@strict
class Spec(PrunedSpec):
    """Share of attention that adaptive computation pruning skips in a trained FoX, and what it changes (ACP)."""

    kind: Literal["pruning"] = "pruning"
    tile: PositiveInt = 128
    """Tokens of a tile's side; 128 are the kernels' own, smaller ones say something of contexts of a few hundred tokens."""
    decoded_tokens: PositiveInt = 32
    """Tokens at the end of each document that are decoded from the cache."""
    rule: Literal["tight"] | None = None
    """Rule of the pruning; None: the model's own, which is ACP's where it was trained without."""

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
