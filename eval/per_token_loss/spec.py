"""Per-token loss (Fig. 2 and every loss curve; perplexity follows from it).

Rows: the curve has document = -1, width = 1 and one row per position (1-based), the mean over `num_documents` documents. Then
come, for each document, the means over 16 equal bands of the context: `position` is the band's last, `width` its length. With
these, differences between models can be paired by document."""

from typing import Any, Literal

import numpy as np
import pandas as pd

from eval.runner.heldout import HeldoutSpec
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number


@strict
class Spec(HeldoutSpec):
    """Loss at every position of long held-out documents, one forward pass each (Fig. 2)."""

    kind: Literal["per_token_loss"] = "per_token_loss"
    context_len: PositiveInt
    """Tokens of each document."""
    num_documents: PositiveInt
    """Number of documents, the first of the held-out split, over which the mean is taken."""

    SCHEMA = Schema(
        {
            "document": integer(-1),
            "position": integer(1),
            "width": integer(1),
            "loss": number(0),  # nats per token
            "num_documents": integer(1),
        },
        key=("document", "position"),
    )

    @property
    def extent(self) -> tuple[int, int]:
        return self.num_documents, self.context_len

    def tokens_read(self) -> list[tuple[int, int]]:
        return [(self.num_documents * self.context_len, self.context_len)]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        curve: Any = rows[rows["document"] < 0].sort_values("position")["loss"].to_numpy()
        marks = sorted({2**k for k in range(7, 17) if 2**k <= len(curve)} | {len(curve)})
        return [f"  perplexity of the first {mark} tokens: {np.exp(curve[:mark].mean()):.3f} (1 is perfect)" for mark in marks]
