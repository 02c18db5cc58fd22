"""The kinds of evaluation, one line each: a module of this package that is what eval/shell/kind.py describes. Torch-free."""

from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any, Union, cast

from pydantic import Field, TypeAdapter

from eval.shell.kind import EvalSpec, Kind, eval_id
from eval.shell.sources import Sources

NAMES = (
    "per_token_loss",
    "needle",
    "needle_recall",
    "recall",
    "equal_logits",
    "longbench",
    "lm_eval",
    "gate_maps",
    "throughput",
    "training_curve",
    "parameters",
    "pruning",
    "attention_speed",
    "ruler",
)
KINDS: dict[str, Kind] = {name: cast(Kind, import_module(f"eval.{name}")) for name in NAMES}

_any_spec: Any = Union.__getitem__(tuple(kind.Spec for kind in KINDS.values()))
EVAL_SPEC: TypeAdapter[Any] = TypeAdapter(Annotated[_any_spec, Field(discriminator="kind")])
"""Specs of every kind as JSON, there and back."""

__all__ = ["EVAL_SPEC", "KINDS", "EvalSpec", "Kind", "eval_id", "kind_of", "unread"]


def kind_of(spec: EvalSpec) -> Kind:
    return KINDS[spec.kind]


def unread(specs: Iterable[EvalSpec], sources: Sources) -> list[str]:
    """Flags that were given although none of these (bound) specs reads them."""
    read = {name for spec in specs for name in kind_of(spec).reads(spec)}
    return [f"--{name.replace('_', '-')}" for name in sources.given() if name not in read]
