"""A copy of the code, made when a graph is submitted, from which its jobs run: editing the checkout does not change them.
Snapshots are named by their content, so equal code is one snapshot."""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from results.provenance import git_state

ROOT = Path(__file__).parent.parent


def snapshot(folder: Path, root: Path = ROOT) -> Path:
    """Return the folder below `folder` that holds the checkout's present code, including uncommitted changes. A snapshot that
    has lost files, as on scratch disks that are purged, is made again."""
    content = {path: (root / path).read_bytes() for path in code_files(root)}
    digest = hashlib.sha256(b"".join(f"{path}\0{len(text)}\0".encode() + text for path, text in content.items())).hexdigest()
    target = folder / digest[:16]
    if target.exists():
        if all(_holds(target / path, text) for path, text in content.items()):
            return target
        shutil.rmtree(target)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".partial-"))
    try:
        for path, text in content.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_bytes(text)
        (temporary / "snapshot.json").write_text(json.dumps(git_state(root)) + "\n")
        temporary.chmod(0o755)
        os.rename(temporary, target)
    except OSError:
        if not target.exists():  # made by another shell meanwhile
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _holds(path: Path, text: bytes) -> bool:
    return path.is_file() and path.read_bytes() == text


def code_files(root: Path = ROOT) -> list[str]:
    """Return the paths of everything that jobs need: the packages, without stored results."""
    packages = [path.parent for path in root.glob("*/__init__.py")]
    paths = (path for package in packages for path in package.rglob("*") if path.is_file())
    found = []
    for relative in (path.relative_to(root) for path in paths):
        stored = relative.parts[0] == "results" and len(relative.parts) > 2
        if not stored and not any(part.startswith(".") or part == "__pycache__" for part in relative.parts):
            found.append(str(relative))
    return sorted(found)
