"""What adaptive computation pruning skips in a trained FoX, and that it changes nothing (ACP, arXiv 2504.06949).

Rows, documents, layers and heads 0-based, -1: not of one. Of every head and document: tiles_pruned (share of the causal tiles
that is skipped) and keys_read (keys touched per decoded token, mean); of document 0 also dropped (largest probability that a
query loses) and first_tile (the first key tile that query tile `position` computes). Of every document: loss and loss_pruned
(mean nats per token of one pass), decoded_loss and decoded_loss_pruned (of the last tokens, one by one from the cache).
"""

from typing import Literal

import pandas as pd
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from eval.per_token_loss import check_documents
from eval.shell.kind import Content, Needs, Precision
from eval.shell.kind import bound as bound
from eval.shell.kind import reads as reads
from models.spec import STRICT, ForgettingTransformerSpec, ModelSpec, PositiveInt
from results.schema import Schema, integer, number, text
from training.spec import RunSpec


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """Pruning at `log_tolerance` of the first held-out documents at `context_len` tokens, in tiles of `tile` tokens squared.

    128 are the kernels' own tiles; smaller ones, of the same rule, say something of contexts of a few hundred tokens.
    `decoded_tokens`: that many at the end of each document are decoded from the cache. `corpus`: fingerprint.
    """

    kind: Literal["pruning"] = "pruning"
    context_len: PositiveInt
    num_documents: PositiveInt = 8
    tile: PositiveInt = 128
    decoded_tokens: PositiveInt = 32
    log_tolerance: float = -10.0
    corpus: Content = None
    precision: Precision | None = None

    @model_validator(mode="after")
    def _check(self) -> "Spec":
        if self.decoded_tokens >= self.context_len:
            raise ValueError(f"decoded_tokens {self.decoded_tokens} must be below context_len {self.context_len}")
        return self


BY_HEAD = ("tiles_pruned", "dropped", "keys_read", "first_tile")
BY_DOCUMENT = ("loss", "loss_pruned", "decoded_loss", "decoded_loss_pruned")
SCHEMA = Schema(
    {
        "quantity": text((*BY_HEAD, *BY_DOCUMENT)),
        "document": integer(-1),
        "layer": integer(-1),
        "head": integer(-1),
        "position": integer(-1),
        "value": number(0),
    },
    key=("quantity", "document", "layer", "head", "position"),
)
NEEDS: Needs = "weights"


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    there = None if counts is None else counts.heldout_rows
    check_documents(spec.num_documents, spec.context_len, there, run.data.document_len)
    if not isinstance(run.model, ForgettingTransformerSpec) or run.model.forget_gate == "none":
        raise ValueError(f"pruning needs a model with forget gates (FoX); {run.name} has none")


def flops(spec: Spec, model: ModelSpec) -> float:
    return 4 * spec.num_documents * spec.context_len * model.flops_per_token(spec.context_len)


def summary(rows: pd.DataFrame) -> list[str]:
    values = rows.groupby("quantity")["value"]
    mean, largest = values.mean(), values.max()
    return [
        f"  tiles pruned: {mean['tiles_pruned']:.3f} of 1; keys read per decoded token: {mean['keys_read']:.1f}",
        f"  loss {mean['loss']:.6f}, pruned {mean['loss_pruned']:.6f} nats per token; a query loses at most "
        f"{largest['dropped']:.1e} of its probability",
    ]
