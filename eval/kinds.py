"""Kinds of evaluation, each a folder here or in beyond/eval, and the identity of an evaluation. Torch-free."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Union

from pydantic import Field, TypeAdapter

from eval.runner.sources import UserData
from eval.runner.spec import EvalSpec

ROOT = Path(__file__).parents[1]
FOLDERS = [path.parent for room in ("eval", "beyond/eval") for path in sorted(ROOT.glob(f"{room}/*/measure.py"))]
"""Folders with `spec.py` and `measure.py`."""
KINDS: dict[str, type[EvalSpec]] = {
    folder.name: import_module(".".join([*folder.relative_to(ROOT).parts, "spec"])).Spec for folder in FOLDERS
}
TIMED = tuple(name for name, spec in KINDS.items() if "machine" in {field.name for field in fields(spec)})  # type: ignore[arg-type]
"""Kinds that measure times, which are never the same twice; on a CPU they need the machine to themselves."""

_any_spec: Any = Union.__getitem__(tuple(KINDS.values()))
EVAL_SPEC: TypeAdapter[Any] = TypeAdapter(Annotated[_any_spec, Field(discriminator="kind")])
"""Reader and writer of specs of every kind as JSON."""

_BOUND = ("corpus", "text", "wording", "dataset", "include", "precision", "machine")
_UNBOUND = (None, "heldout", "local")


def measure_of(spec: EvalSpec) -> ModuleType:
    """Import the module that computes an evaluation, which may need torch."""
    return import_module(f"{type(spec).__module__.removesuffix('.spec')}.measure")


def eval_id(spec: EvalSpec) -> str:
    """Return `kind-xxxxxxxx`: the kind and the first 8 hex digits of the SHA-256 of the fields that differ from their defaults.
    So a field that is added later does not change earlier ids, and a default must never change."""
    assert not unbound(spec), f"an evaluation without its {', '.join(unbound(spec))} has no identity; see `bound`"
    changed = TypeAdapter(type(spec)).dump_python(spec, mode="json", exclude_defaults=True)
    text = json.dumps({**changed, "kind": spec.kind}, sort_keys=True)
    return f"{spec.kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def unbound(spec: EvalSpec) -> list[str]:
    """Return the fields that `bound` has not filled in yet."""
    names = [field.name for field in fields(spec)]  # type: ignore[arg-type]  # every kind is a dataclass
    return [name for name in names if name in _BOUND and getattr(spec, name) in _UNBOUND]


def unread(specs: Iterable[EvalSpec], sources: UserData) -> list[str]:
    """Return the flags that were given but that none of these (bound) specs reads."""
    read = {name for spec in specs for name in spec.reads()}
    return [f"--{name.replace('_', '-')}" for name in sources.given() if name not in read]
