"""Loss at every position of long held-out documents (Fig. 2 and every loss curve; perplexity follows from it).

Rows: the curve has document = -1, width = 1 and one row a position (1-based): the mean over `num_documents` documents. Below
it, for each document, the mean over each of 16 equal bands of the context: `position` is the band's last, `width` its length.
So differences between models can be paired by document.
"""

from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from eval.shell.kind import Content, Needs, Precision
from eval.shell.kind import bound as bound
from eval.shell.kind import reads as reads
from models.spec import STRICT, ModelSpec, PositiveInt
from results.schema import Schema, integer, number
from training.spec import RunSpec


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """L(i) over the first `num_documents` held-out documents at `context_len` tokens, one forward pass each (Fig. 2).

    `corpus`: fingerprint of the corpus.
    """

    kind: Literal["per_token_loss"] = "per_token_loss"
    context_len: PositiveInt
    num_documents: PositiveInt
    corpus: Content = None
    precision: Precision | None = None


SCHEMA = Schema(
    {
        "document": integer(-1),  # -1: mean over documents
        "position": integer(1),
        "width": integer(1),
        "loss": number(0),  # nats per token
        "num_documents": integer(1),
    },
    key=("document", "position"),
)
NEEDS: Needs = "weights"


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    check_documents(
        spec.num_documents, spec.context_len, None if counts is None else counts.heldout_rows, run.data.document_len
    )


def check_documents(num_documents: int, context_len: int, there: int | None, document_len: int) -> None:
    """ValueError for more documents, or longer ones, than the held-out split has."""
    if there is not None and num_documents > there:
        raise ValueError(f"num_documents {num_documents} exceeds the {there} held-out documents of the corpus")
    if context_len > document_len:
        raise ValueError(f"context_len {context_len} exceeds the {document_len} tokens of the corpus's documents")


def flops(spec: Spec, model: ModelSpec) -> float:
    return spec.num_documents * spec.context_len * model.flops_per_token(spec.context_len)


def summary(rows: pd.DataFrame) -> list[str]:
    curve: Any = rows[rows["document"] < 0].sort_values("position")["loss"].to_numpy()
    marks = sorted({2**k for k in range(7, 17) if 2**k <= len(curve)} | {len(curve)})
    return [f"  perplexity of the first {mark} tokens: {np.exp(curve[:mark].mean()):.3f} (1 is perfect)" for mark in marks]
