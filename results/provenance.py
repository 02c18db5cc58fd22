"""Provenance of a result: code, versions and hardware, as one JSON object."""

import datetime
import importlib.metadata
import json
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "flash-linear-attention", "transformers", "numpy")


def git_state(root: Path | None = None) -> dict[str, Any]:
    """Commit of the checkout that tracks this file, and whether tracked files differ from it; nulls outside a checkout, even if
    the code lies inside another project's. A snapshot of the code (slurm/snapshot.py) has both in its snapshot.json."""
    root = root or Path(__file__).parent.parent
    if (root / "snapshot.json").exists():
        return json.loads((root / "snapshot.json").read_text())

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "results/provenance.py")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
        return {"git_sha": git("rev-parse", "HEAD"), "git_dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return {"git_sha": None, "git_dirty": None}


def commit_name(provenance: dict[str, Any]) -> str:
    """Return the abbreviated commit, with a + if files differed from it."""
    return str(provenance.get("git_sha") or "unknown")[:10] + ("+" if provenance.get("git_dirty") else "")


def provenance(device_name: str, world_size: int = 1) -> dict[str, Any]:
    """Return one line of provenance.jsonl."""
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        **git_state(),
        "python": platform.python_version(),
        "versions": versions,
        "device": device_name,
        "world_size": world_size,
    }


def is_cpu(machine: str) -> bool:
    """Return whether a machine, as named by `machine_name` in eval/runner, is a CPU."""
    return machine.endswith(" cores")
