"""Gate maps of FoX (Fig. 3).

Rows: layers and heads are 0-based. Statistics of every head (row = col = -1): half_life_tokens (distance at which the median of
F over queries has fallen to one half), median_F (of F_{i, i - distance} over queries i), pruned_share (share of the attention
kernel's causal tiles that pruning at log_tolerance would skip). Matrices of a few heads, the lower triangle of cells of
`extras["cell"]` tokens squared: "F" is the mean and "A" the largest value of the pairs in a cell."""

from typing import Literal

import pandas as pd

from data.corpus import Counts
from eval.runner.heldout import HeldoutSpec
from eval.runner.spec import LogTolerance
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.spec_parts import NonNegativeInt, PositiveInt, strict
from results.schema import Schema, integer, number, text
from training.spec import RunSpec


@strict
class Spec(HeldoutSpec):
    """Forget gates of FoX on real text: statistics of every head, and the matrices F and A of a few (Fig. 3)."""

    kind: Literal["gate_maps"] = "gate_maps"
    seq_len: PositiveInt = 16384
    """Tokens of the document."""
    document: NonNegativeInt = 0
    """Index of the held-out document (0-based)."""
    layers: tuple[NonNegativeInt, ...] = ()
    """Layers (0-based) whose heads may be drawn; default: all."""
    heads: tuple[NonNegativeInt, ...] = ()
    """Heads (0-based) that may be drawn; default: all."""
    num_maps: PositiveInt = 4
    """Number of heads whose matrices are stored: half the most local ones, half the most global ones, by median F."""
    grid: PositiveInt = 256
    """Side of the stored matrices, in cells."""
    distance: PositiveInt = 1024
    """Distance in tokens of the F whose median is taken (1024 in the suggested criterion)."""
    log_tolerance: LogTolerance = -10.0
    """log(eps) of adaptive computation pruning."""

    GATED = True
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

    def __post_init__(self) -> None:
        if self.distance >= self.seq_len:
            raise ValueError(f"distance {self.distance} must be below seq_len {self.seq_len}")

    @property
    def extent(self) -> tuple[int, int]:
        return self.document + 1, self.seq_len

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        super().check(run, counts)
        assert isinstance(run.model, ForgettingTransformerSpec)
        self.check_heads(run.model.num_layers, run.model.num_heads)

    def check_heads(self, num_layers: int, num_heads: int) -> None:
        """Raise ValueError for a layer or head that the model does not have."""
        for what, asked, there in (("layer", self.layers, num_layers), ("head", self.heads, num_heads)):
            missing = [index for index in sorted(asked) if index >= there]
            if missing:
                raise ValueError(f"{what} {missing[0]} does not exist: the model has {what}s 0 to {there - 1} (0-based)")

    def tokens_read(self) -> list[tuple[int, int]]:
        return [(self.seq_len, self.seq_len)]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        table = rows[rows["row"] < 0].groupby("quantity", sort=False)["value"].median()
        scales = {"median_F": " (0 to 1)", "pruned_share": " (0 to 1)", "half_life_tokens": " tokens"}
        return [f"  {quantity}: median over heads {value:.4g}{scales[str(quantity)]}" for quantity, value in table.items()]
