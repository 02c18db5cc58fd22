"""Lists of what a kept folder must hold: names, sizes and SHA-256 of its files, in a sealed file that is written last.
Torch-free."""

import hashlib
import os
from pathlib import Path
from typing import Any

from results.sealed import read_sealed, write_sealed

MANIFEST = "manifest.json"


def seal(folder: Path, **facts: Any) -> None:
    """Flush every file of `folder` to disk and write the manifest, with `facts` beside the list of files."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
    write_sealed(folder / MANIFEST, {**facts, "files": files})


def fault(folder: Path, *, digests: bool) -> str | None:
    """Return what is wrong with a sealed folder, or None. Without `digests` only sizes are compared, which is fast."""
    try:
        files = read_sealed(folder / MANIFEST, "")["files"]
        return next(filter(None, (_fault(folder / name, entry, digests) for name, entry in files.items())), None)
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing, cut off, altered or of another version"


def _fault(path: Path, entry: dict[str, Any], digests: bool) -> str | None:
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"{path.name} has {size} bytes, not {entry['bytes']}"
        if digests and _digest(path) != entry["sha256"]:
            return f"{path.name} was altered (its SHA-256 differs)"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"
    return None


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
