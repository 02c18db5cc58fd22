"""Parameters of a fresh model, one by one (Fig. 1, Table 4)."""

from typing import Literal

import pandas as pd

from eval.runner.spec import EvalSpec
from models.spec_parts import strict
from results.schema import Schema, integer, text

INPUT_EMBEDDING = "embeddings.weight"
"""Name of the input embedding in the rows of every model."""


@strict
class Spec(EvalSpec):
    """Every parameter of a model as the suite builds it, in the order of its modules (Fig. 1, Table 4)."""

    kind: Literal["parameters"] = "parameters"

    NEEDS = "spec"
    SCHEMA = Schema(
        # "layers.0.attn.q_proj.weight", the class of its module, "128 x 344" (a matrix maps the second size to the first)
        {"name": text(), "module": text(), "shape": text(), "count": integer(1)},
        key=("name",),
    )

    def summary(self, rows: pd.DataFrame) -> list[str]:
        return [f"  {rows['count'].sum():,} parameters, {counted(rows):,} without the input embedding"]


def counted(rows: pd.DataFrame) -> int:
    """Return the number of parameters without the input embedding but with the output head, as the paper counts."""
    return int(rows.loc[rows["name"] != INPUT_EMBEDDING, "count"].sum())
