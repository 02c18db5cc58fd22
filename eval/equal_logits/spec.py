"""Equal logits: the built-in bias towards recent keys.

The first attention layer of a fresh model gets zeros as input, so that every logit is 0, and the rows of an identity matrix as
values, so that the output of the last query is its attention weights. With equal logits z, stick-breaking gives the key at
distance d the weight sigmoid(z) (1 - sigmoid(z))^(d - 1); softmax alone gives every key the same weight."""

from dataclasses import replace
from typing import Literal, Self

import pandas as pd

from data.corpus import Counts
from eval.runner.spec import EvalSpec, Precision, Setting
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.spec_parts import strict
from results.schema import Schema, integer, number
from training.spec import RunSpec


@strict
class Spec(EvalSpec):
    """Attention weights of the last token when all logits are equal, in a text of as many tokens as a head has channels."""

    kind: Literal["equal_logits"] = "equal_logits"
    precision: Precision | None = None
    """Always fp32, filled in by `bound`."""

    NEEDS = "spec"
    SCHEMA = Schema(
        {"head": integer(0), "distance": integer(0), "weight": number(0, 1)},  # distance 0: the query's own position
        key=("head", "distance"),
    )

    def bound(self, setting: Setting) -> Self:
        return replace(self, precision="fp32")

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        if not isinstance(run.model, ForgettingTransformerSpec):
            raise ValueError(f"{run.name} is not an attention model and has no attention weights: choose another model")

    def tokens_read(self) -> list[tuple[int, int]]:
        return [(128, 128)]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        near = rows[rows["distance"].between(0, 4)].groupby("distance")["weight"].mean()
        return [f"  weight at distance {distance}, mean over heads: {weight:.4f} of 1" for distance, weight in near.items()]
