"""Base of the specs of evaluations: what each of them answers about itself. Torch-free.

A spec holds everything that changes the rows, by content and never by path. What the command line or the plan cannot know yet
(the corpus, the precision of the run) is filled in by `bound`; only then has the evaluation an identity (eval/kinds.py)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import pandas as pd
import tyro
from pydantic import AfterValidator

from data.corpus import Counts
from data.spec import DataSpec
from eval.shell.sources import UserData
from models.spec import ModelSpec
from results.schema import Schema
from training.spec import RunSpec

Needs = Literal["weights", "spec", "metrics"]
"""Part of a run that is needed: the trained model, a fresh model of its spec (timings), or metrics.jsonl alone."""

Precision = Literal["fp32", "bf16"]
PrecisionOption = Annotated[
    Precision | None, tyro.conf.arg(help="fp32 weights, or bf16 autocast; default: as the run was trained.")
]
Content = Annotated[str | None, tyro.conf.Suppress]
"""Digest (or name) of what will be read: filled in by `bound`, never typed."""


def _share(log_tolerance: float) -> float:
    if log_tolerance >= 0:
        raise ValueError(f"log_tolerance {log_tolerance}: give the log of a share, below 0, e.g. -10")
    return log_tolerance


LogTolerance = Annotated[float, AfterValidator(_share)]
"""Log of the share of its probability that a query may lose."""


def _once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if repeated := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{repeated[0]} is there twice: name each once")
    return values


Once = AfterValidator(_once)
"""Check of a list whose members each give rows, which may be there once."""


@dataclass(frozen=True)
class Setting:
    """Surroundings of an evaluation, by which `bound` names what will be read and where it is computed."""

    corpus: DataSpec | None
    sources: UserData
    precision: Precision
    """Precision that the run was trained in."""
    machine: str
    """Name of the GPU or CPU."""


class EvalSpec:
    """Usual answers, for the frozen pydantic dataclass `Spec` of each eval/NAME/spec.py, whose `kind` is NAME. The evaluation
    itself is `evaluate(loaded, spec, context) -> DataFrame` in eval/NAME/measure.py: the rows, as SCHEMA says. That file may
    need torch and is imported when an evaluation is computed."""

    kind: str
    SCHEMA: ClassVar[Schema]
    NEEDS: ClassVar[Needs] = "weights"

    def reads(self) -> Collection[str]:
        """Return what a bound spec opens: fields of Sources, and "hub"."""
        return ()

    def bound(self, setting: Setting) -> Self:
        """Return the spec with everything that will be read, by content. ValueError where it is missing or cannot be used."""
        return self

    def fetch(self, sources: UserData) -> None:
        """Put into the local cache what a bound spec reads from the hub. ValueError if it cannot be had."""

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        """Raise ValueError for what can be known before `run` is trained on a corpus of these counts (None: not known)."""

    def tokens_read(self) -> list[tuple[int, int]]:
        """Return about how many tokens a model reads in the whole evaluation, each with the length of the text it stands in."""
        return []

    def flops(self, model: ModelSpec) -> float:
        """Return about how many FLOPs the whole evaluation takes."""
        return float(sum(tokens * model.flops_per_token(length) for tokens, length in self.tokens_read()))

    def summary(self, rows: pd.DataFrame) -> list[str]:
        """Return the headline numbers, each with its scale, as lines for the terminal."""
        raise NotImplementedError
