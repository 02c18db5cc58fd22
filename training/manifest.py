"""Manifests of checkpoints and exports: names, sizes and SHA-256 of their files, written last. Torch-free."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from results.atomic import write_atomic

MANIFEST = "manifest.json"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def seal(folder: Path, **facts: Any) -> None:
    """Flush every file of `folder` to disk and write the manifest, with `facts` beside the list of files. File modes
    follow the umask, since safetensors writes files that nobody else can read."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest(path)}
    write_atomic(folder / MANIFEST, json.dumps({**facts, "files": files}, indent=1) + "\n")
    for name in files:
        if (folder / name).stat().st_mode != (folder / MANIFEST).stat().st_mode:  # some file systems have only one mode
            shutil.copymode(folder / MANIFEST, folder / name)


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MANIFEST).read_bytes())


def fault(folder: Path, *, digests: bool, **facts: Any) -> str | None:
    """Return what is wrong with a sealed folder, or None. Without `digests` only sizes are compared, which is fast. `facts`:
    values that the manifest must not contradict, such as the run and the step."""
    try:
        sealed = read(folder)
        for name, value in facts.items():
            if sealed.get(name, value) != value:
                return f"it does not belong here: its {name} is {sealed[name]}, not {value}"
        return next(filter(None, (_fault(folder / name, entry, digests) for name, entry in sealed["files"].items())), None)
    except UNREADABLE:
        return f"{MANIFEST} is missing, truncated, altered or of another version"


def check(folder: Path) -> None:
    """Check a model's folder against its manifest, if it has one. Raises ValueError if a file is missing or was altered."""
    if (folder / MANIFEST).is_file() and (said := fault(folder, digests=True)) is not None:
        remedy = f"Copy it again; if its {MANIFEST} is from elsewhere or files were changed on purpose, delete the {MANIFEST}."
        raise ValueError(f"{folder} is damaged: {said}. {remedy}")


def weights(folder: Path) -> str | None:
    """Return the digest of a sealed folder's weights, computed from its manifest; None if it has no weights."""
    try:
        return weights_digest({name: entry["sha256"] for name, entry in read(folder)["files"].items()})
    except UNREADABLE:
        return None


def weights_digest(files: dict[str, str]) -> str | None:
    """Return the first 16 hex digits of the SHA-256 over names and contents of the weight files among `files` (name: its
    SHA-256). None if there are none."""
    names = sorted(name for name in files if name.endswith(".safetensors"))
    whole = b"".join(name.encode() + bytes.fromhex(files[name]) for name in names)
    return hashlib.sha256(whole).hexdigest()[:16] if names else None


def _fault(path: Path, entry: dict[str, Any], digests: bool) -> str | None:
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"{path.name} has {size} bytes, not {entry['bytes']}"
        if digests and digest(path) != entry["sha256"]:
            return f"{path.name} was altered (its SHA-256 differs)"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"
    return None


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
