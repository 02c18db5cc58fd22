"""How attention spreads over the keys when all logits are equal: the bias towards recent keys that is built in.

The first layer of a fresh model is asked with zeros for input, so that every logit is 0; the values are the rows of an identity
matrix, so that the output of the last query is its weights. With equal logits z stick-breaking gives the key at distance d
sigmoid(z) (1 - sigmoid(z))^(d - 1); softmax alone gives every key the same.
"""

from dataclasses import replace
from typing import Literal

import pandas as pd
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from data.spec import DataSpec
from eval.shell.kind import Needs, Precision
from eval.shell.kind import reads as reads
from eval.shell.sources import Sources
from models.spec import STRICT, ForgettingTransformerSpec, ModelSpec
from results.schema import Schema, integer, number
from training.spec import RunSpec


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """Weights of the last of as many tokens as a head has channels, in fp32."""

    kind: Literal["equal_logits"] = "equal_logits"
    precision: Precision | None = None


SCHEMA = Schema(
    {"head": integer(0), "distance": integer(0), "weight": number(0, 1)},  # distance 0: the query's own position
    key=("head", "distance"),
)
NEEDS: Needs = "spec"


def bound(spec: Spec, corpus: DataSpec | None, sources: Sources, precision: Precision, machine: str) -> Spec:
    return replace(spec, precision="fp32")


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    if not isinstance(run.model, ForgettingTransformerSpec):
        raise ValueError(f"weights of equal logits need an attention model; {run.name} is none")


def flops(spec: Spec, model: ModelSpec) -> float:
    return 128 * model.flops_per_token(128)


def summary(rows: pd.DataFrame) -> list[str]:
    near = rows[rows["distance"].between(0, 4)].groupby("distance")["weight"].mean()
    return [f"  weight at distance {distance}, mean over heads: {weight:.4f} of 1" for distance, weight in near.items()]
