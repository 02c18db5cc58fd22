"""JSON files that detect changes: the last key of the object is its own SHA-256. Standard library only."""

import hashlib
import json
from pathlib import Path
from typing import Any

from results.atomic import write_atomic

SEAL = "sha256"


def write_sealed(path: Path, values: dict[str, Any], *, compact: bool = False) -> None:
    """Write `values` and their digest atomically. `compact`: one line per value and per item of a list, so that one more item
    is one more line in a diff. ValueError for NaN and infinity, which are not JSON."""
    as_read = json.loads(json.dumps(values))  # in JSON keys are strings, which sort differently
    sealed = {**values, SEAL: _digest(as_read)}
    write_atomic(path, (_compact(sealed) if compact else json.dumps(sealed, indent=1, allow_nan=False)) + "\n")


def _compact(values: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        if not isinstance(value, list):
            return json.dumps(value, allow_nan=False)
        return "[\n" + ",\n".join(f"  {json.dumps(item, allow_nan=False)}" for item in value) + "\n ]"

    return "{\n" + ",\n".join(f" {json.dumps(name)}: {text(value)}" for name, value in values.items()) + "\n}"


def read_sealed(path: Path, remedy: str, types: dict[str, type] | None = None) -> dict[str, Any]:
    """Return the values of a sealed file. ValueError ending with `remedy` if the file is missing, truncated or changed since it
    was written, or if its values do not have these `types` by name."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        seal = values.pop(SEAL, None)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: {remedy}") from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({type(error).__name__}): {remedy}") from None
    if seal is None:
        raise ValueError(f"{path} has no {SEAL} to verify it by: {remedy}")
    if seal != _digest(values):
        raise ValueError(f"{path} was changed after it was written (its SHA-256 differs): {remedy}")
    if not all(isinstance(values.get(name), kind) for name, kind in (types or {}).items()):
        raise ValueError(f"{path} is of another version: {remedy}")
    return values


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
