"""What a kind of evaluation is, and the identity of one evaluation. Torch-free.

A spec holds everything that changes the rows, by content and never by path. What the command line or the plan cannot know yet
(the corpus, the precision of the run) is filled in by the kind's `bound`; only then has the evaluation an identity.
"""

import hashlib
import json
from collections.abc import Collection
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, Protocol

import pandas as pd
import tyro
from pydantic import Field, TypeAdapter

from data.corpus import Counts
from data.spec import DataSpec
from eval.shell.sources import Sources, fingerprint
from models.spec import ModelSpec
from results.schema import Schema
from training.spec import RunSpec

Needs = Literal["weights", "spec", "metrics"]
"""Of a run: the trained model, a fresh model of its spec (timings), or metrics.jsonl alone."""

Precision = Literal["fp32", "bf16"]
Content = Annotated[str | None, tyro.conf.Suppress]
"""A digest (or name) of what will be read: filled in by `bound`, never typed."""
NonNegativeInt = Annotated[int, Field(ge=0)]

_BOUND = ("corpus", "text", "wording", "dataset", "include", "precision", "machine")
_UNBOUND = (None, "heldout", "local")


class EvalSpec(Protocol):
    """A frozen pydantic dataclass whose `kind` is a literal."""

    @property
    def kind(self) -> str: ...


class Kind(Protocol):
    """A module of eval/: what `eval/kinds.py` lists. Torch-free; the evaluation itself is

        evaluate(loaded: Loaded, spec: Spec, context: Context) -> DataFrame    # the rows, as SCHEMA says

    in the module, if that is one file, or in `measure.py` of its folder, which is imported when it is needed.
    """

    __name__: str
    __doc__: str | None
    Spec: Any
    SCHEMA: Schema
    NEEDS: Needs

    def reads(self, spec: Any) -> Collection[str]:
        """What a bound spec opens: fields of Sources, and "hub"."""

    def bound(self, spec: Any, corpus: DataSpec | None, sources: Sources, precision: Precision, machine: str) -> Any:
        """The spec with everything that will be read, by content. ValueError where it is missing or cannot be used."""

    def fetch(self, spec: Any, sources: Sources) -> None:
        """Put into the local cache what a bound spec reads from the hub. ValueError if it cannot be had."""

    def check(self, spec: Any, run: RunSpec, counts: Counts | None) -> None:
        """ValueError for what can be known before `run` is trained on a corpus of these counts (None: not known)."""

    def flops(self, spec: Any, model: ModelSpec) -> float:
        """Of the whole evaluation, about."""

    def summary(self, rows: pd.DataFrame) -> list[str]:
        """The headline numbers, each with its scale, for the terminal."""


def eval_id(spec: EvalSpec) -> str:
    """`kind-xxxxxxxx`: the kind and the first 8 hex digits of the SHA-256 of the fields that are not at their default.

    A default is for ever: a switch that is added later leaves the names of earlier evaluations as they are.
    """
    assert not unbound(spec), f"an evaluation without its {', '.join(unbound(spec))} has no identity; see `bound`"
    changed = TypeAdapter(type(spec)).dump_python(spec, mode="json", exclude_defaults=True)
    text = json.dumps({**changed, "kind": spec.kind}, sort_keys=True)
    return f"{spec.kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def unbound(spec: EvalSpec) -> list[str]:
    """Fields that `bound` has still to fill in."""
    return [field.name for field in fields(spec) if field.name in _BOUND and getattr(spec, field.name) in _UNBOUND]  # type: ignore[arg-type]


def reads(spec: EvalSpec) -> tuple[str, ...]:
    """The usual `reads`, for a kind to import: the held-out text, if the spec names a corpus."""
    return ("corpus",) if hasattr(spec, "corpus") else ()


def bound(spec: Any, corpus: DataSpec | None, sources: Sources, precision: Precision, machine: str) -> Any:
    """The usual `bound`, for a kind to import: corpus, machine and precision, as far as the spec has them."""
    found: dict[str, str] = {}
    if hasattr(spec, "corpus"):
        found["corpus"] = fingerprint(corpus)
    if hasattr(spec, "machine"):
        found["machine"] = machine
    if hasattr(spec, "precision"):
        found["precision"] = spec.precision or precision
    return replace(spec, **found)


def check(spec: EvalSpec, run: RunSpec, counts: Counts | None) -> None:
    """The usual `check`, for a kind to import: nothing can go wrong that depends on the run or its corpus."""
