"""Arguments of a custom operator as PyTorch wants them described."""

from typing import get_type_hints

from torch import Tensor

_KINDS = {Tensor | None: "Tensor?", float | None: "float?", int | None: "SymInt?", float: "float", bool: "bool", str: "str"}


def arguments(options: type) -> str:
    """Return the fields of a NamedTuple in PyTorch's language for the schemas of operators."""
    return ", ".join(f"{_KINDS[kind]} {name}" for name, kind in get_type_hints(options).items())
