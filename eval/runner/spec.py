"""Base of the specs of evaluations. Torch-free.

A spec holds everything that changes the rows, by content and never by path. `bound` fills in what the command line or the plan
does not state (the corpus, the run's precision); only then does the evaluation have an identity (eval/kinds.py)."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import pandas as pd
import tyro
from pydantic import AfterValidator, Field

from data.corpus import Counts
from data.spec import DataSpec
from eval.runner.sources import UserData, fingerprint
from models.spec import ModelSpec
from results.schema import Schema
from training.spec import RunSpec

Needs = Literal["weights", "spec", "metrics"]
"""Part of a run that an evaluation needs: the trained model, a fresh model of its spec (timings), or metrics.jsonl alone."""

Precision = Literal["fp32", "bf16"]
PrecisionOption = Annotated[
    Precision | None, tyro.conf.arg(help="fp32 weights, or bf16 autocast; default: as the run was trained.")
]
Content = Annotated[str | None, tyro.conf.Suppress]
"""Digest (or name) of what will be read: filled in by `bound`, never given by the user."""


def _share(log_tolerance: float) -> float:
    if log_tolerance >= 0:
        raise ValueError(f"log_tolerance {log_tolerance}: give the log of a share, below 0, e.g. -10")
    return log_tolerance


LogTolerance = Annotated[float, AfterValidator(_share)]
"""Log of the share of its attention probability that a query may lose."""


def _once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("name at least one")
    if repeated := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{repeated[0]} is given twice: name each once")
    return values


AtLeastTwo = Annotated[int, Field(ge=2)]
Once = AfterValidator(_once)
"""Validator of a list that is not empty and has no duplicates: each member gives rows of its own."""


@dataclass(frozen=True)
class Setting:
    """Setting from which `bound` fills in what an evaluation will read and where it is computed."""

    corpus: DataSpec | None
    sources: UserData
    precision: Precision
    """Precision that the run was trained in."""
    machine: str
    """Name of the GPU or CPU."""


class EvalSpec:
    """Defaults for the frozen pydantic dataclass `Spec` of each eval/NAME/spec.py, whose `kind` is NAME. The evaluation itself
    is `evaluate(loaded, spec, context)` in eval/NAME/measure.py, which returns rows that follow SCHEMA. That file may need
    torch and is imported only when an evaluation is computed."""

    kind: str
    SCHEMA: ClassVar[Schema]
    NEEDS: ClassVar[Needs] = "weights"

    def reads(self) -> Collection[str]:
        """Return the fields of Sources that a bound spec opens, and "hub" if it reads from the hub."""
        return ()

    def bound(self, setting: Setting) -> Self:
        """Return the spec with the content of everything that will be read filled in: here a corpus, the machine, and the run's
        precision if none is asked for. ValueError if any of it is missing or cannot be used."""
        names = {field.name for field in fields(self)}  # type: ignore[arg-type]  # every kind is a dataclass
        filled: dict[str, Any] = {
            "machine": setting.machine,
            "precision": getattr(self, "precision", None) or setting.precision,
        }
        if "corpus" in names:
            filled["corpus"] = fingerprint(setting.corpus)
        return replace(self, **{name: value for name, value in filled.items() if name in names})  # type: ignore[type-var]

    def fetch(self, sources: UserData) -> None:
        """Fetch what a bound spec reads from the hub into the local cache. ValueError if that fails."""

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        """Raise ValueError if this evaluation of `run` must fail on a corpus of these counts (None: not known). Called before
        the run is trained."""

    def tokens_read(self) -> list[tuple[int, int]]:
        """Return estimates of the tokens that a model reads in the whole evaluation, as (tokens, length of their texts)."""
        return []

    def flops(self, model: ModelSpec) -> float:
        """Return an estimate of the FLOPs of the whole evaluation."""
        return float(sum(tokens * model.flops_per_token(length) for tokens, length in self.tokens_read()))

    def summary(self, rows: pd.DataFrame) -> list[str]:
        """Return the headline numbers, each with its scale, as lines for the terminal."""
        raise NotImplementedError
