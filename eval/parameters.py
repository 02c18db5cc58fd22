"""What a model is made of: every parameter of a fresh model, in the order of its modules (Fig. 1, Table 4)."""

from typing import Literal

import pandas as pd
from pydantic.dataclasses import dataclass

from eval.shell.context import Context
from eval.shell.kind import Needs
from eval.shell.kind import bound as bound
from eval.shell.kind import check as check
from eval.shell.kind import reads as reads
from eval.shell.loading import Loaded
from models.spec import STRICT, ModelSpec
from results.schema import Schema, integer, text

EMBEDDING = "embeddings"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """The whole model, as the suite builds it from the run's spec."""

    kind: Literal["parameters"] = "parameters"


SCHEMA = Schema(
    {
        "name": text(),  # "layers.0.attn.q_proj.weight"
        "module": text(),  # class of the module that it belongs to
        "shape": text(),  # "128 x 344"; a matrix maps the second size to the first
        "count": integer(1),
    },
    key=("name",),
)
NEEDS: Needs = "spec"


def flops(spec: Spec, model: ModelSpec) -> float:
    return 0.0


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """A row per parameter; names are without the head's prefix for the backbone."""
    model = loaded.fresh()
    rows = []
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            whole = f"{path}.{name}".removeprefix(f"{model.base_model_prefix}.")
            shape = " x ".join(map(str, parameter.shape))
            rows.append({"name": whole, "module": type(module).__name__, "shape": shape, "count": parameter.numel()})
    return pd.DataFrame(rows)


def counted(rows: pd.DataFrame) -> int:
    """Parameters without the input embedding, but with the output head: the paper's count."""
    return int(rows.loc[~rows["name"].str.startswith(EMBEDDING), "count"].sum())


def summary(rows: pd.DataFrame) -> list[str]:
    return [f"  {rows['count'].sum():,} parameters, {counted(rows):,} without the input embedding"]
