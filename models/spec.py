"""All kinds of models, without torch: a folder each, here or in beyond/models.

`spec.py` holds a frozen, validated dataclass (what the model is, its parameters, FLOPs and state size), `module.py` beside it
its torch modules, of which the class `Model` is the whole backbone. A kind without modules can be read, not built. A spec is
part of a run's identity and round-trips through JSON."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from models.spec_parts import ModelKind

ROOT = Path(__file__).parents[1]
FOLDERS = [path.parent for room in ("models", "beyond/models") for path in sorted(ROOT.glob(f"{room}/*/spec.py"))]
KINDS: dict[str, Any] = {
    each.kind: each
    for folder in FOLDERS
    for each in vars(import_module(".".join([*folder.relative_to(ROOT).parts, "spec"]))).values()
    if isinstance(each, type) and issubclass(each, ModelKind) and getattr(each, "kind", None) == folder.name
}
"""Spec of every kind, by its folder's name."""

if TYPE_CHECKING:
    ModelSpec = ModelKind
else:
    ModelSpec = Annotated[Union.__getitem__(tuple(KINDS.values())), Field(discriminator="kind")]


def modules_of(spec: ModelKind) -> Any:
    """Import the torch modules of a spec's kind. ValueError if there are none."""
    if not spec.is_built:
        raise ValueError(f"a model of kind {spec.kind!r} can be read, not built: its modules are not here any more")
    return import_module(f"{type(spec).__module__.removesuffix('.spec')}.module")
