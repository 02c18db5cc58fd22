"""What the forget gates of FoX do on a real text: statistics of every head, and F and A of a few (Fig. 3).

Rows, layers and heads 0-based. Statistics (row = col = -1) of every head: half_life_tokens (distance at which the median of F
over queries has fallen to a half), median_F (of F_{i, i - distance} over queries i), pruned_share (of the causal tiles of the
attention kernel that pruning at log_tolerance would skip). Matrices of a few heads, lower triangle of cells of `extras["cell"]`
tokens squared: "F" the mean and "A" the largest value of the pairs in a cell.
"""

from typing import Literal

import pandas as pd
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from eval.shell.kind import Content, Needs, NonNegativeInt, Precision
from eval.shell.kind import bound as bound
from eval.shell.kind import reads as reads
from models.spec import STRICT, ForgettingTransformerSpec, ModelSpec, PositiveInt
from results.schema import Schema, integer, number, text
from training.spec import RunSpec


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """Forget-gate matrix F and attention matrix A of chosen heads on one held-out document, statistics of all (Fig. 3).

    `layers` and `heads` are 0-based, () means every one; of these the `num_maps` most local and most global heads (half
    each, by median F) are stored as matrices of side `grid`, downsampled. `distance`: offset in tokens at which F is
    taken for that median (1024 in the suggested criterion). `log_tolerance`: log(eps) of adaptive computation pruning.
    `corpus`: fingerprint of the corpus.
    """

    kind: Literal["gate_maps"] = "gate_maps"
    seq_len: PositiveInt = 16384
    document: NonNegativeInt = 0
    layers: tuple[NonNegativeInt, ...] = ()
    heads: tuple[NonNegativeInt, ...] = ()
    num_maps: PositiveInt = 4
    grid: PositiveInt = 256
    distance: PositiveInt = 1024
    log_tolerance: float = -10.0
    corpus: Content = None
    precision: Precision | None = None

    @model_validator(mode="after")
    def _check(self) -> "Spec":
        if self.distance >= self.seq_len:
            raise ValueError(f"distance {self.distance} must be below seq_len {self.seq_len}")
        return self


SCHEMA = Schema(
    {
        "layer": integer(0),
        "head": integer(0),
        "quantity": text(("half_life_tokens", "median_F", "pruned_share", "F", "A")),
        "row": integer(-1),
        "col": integer(-1),
        "value": number(),
    },
    key=("layer", "head", "quantity", "row", "col"),
)
NEEDS: Needs = "weights"


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    check_document(spec, None if counts is None else counts.heldout_rows, run.data.document_len)
    if not isinstance(run.model, ForgettingTransformerSpec) or run.model.forget_gate == "none":
        raise ValueError(f"gate maps need a model with forget gates (FoX); {run.name} has none")
    check_heads(spec, run.model.num_layers, run.model.num_heads)


def check_document(spec: Spec, there: int | None, document_len: int) -> None:
    if there is not None and spec.document >= there:
        raise ValueError(f"document {spec.document} does not exist: the corpus has {there} held-out documents")
    if spec.seq_len > document_len:
        raise ValueError(f"seq_len {spec.seq_len} exceeds the {document_len} tokens of the corpus's documents")


def check_heads(spec: Spec, num_layers: int, num_heads: int) -> None:
    for what, asked, there in (("layer", spec.layers, num_layers), ("head", spec.heads, num_heads)):
        missing = [index for index in sorted(asked) if index >= there]
        if missing:
            raise ValueError(f"{what} {missing[0]} does not exist: the model has {what}s 0 to {there - 1} (0-based)")


def flops(spec: Spec, model: ModelSpec) -> float:
    return 2 * spec.seq_len * model.flops_per_token(spec.seq_len)


def summary(rows: pd.DataFrame) -> list[str]:
    table = rows[rows["row"] < 0].groupby("quantity", sort=False)["value"].median()
    scales = {"median_F": " of 0 to 1", "pruned_share": " of 0 to 1", "half_life_tokens": " tokens"}
    return [f"  {quantity}: median over heads {value:.4g}{scales[str(quantity)]}" for quantity, value in table.items()]
