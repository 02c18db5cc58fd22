"""Marks of complete drawings: which lines an artefact was last drawn from, and the files of the drawing. Torch-free."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from analysis.study import Study
from results.atomic import write_atomic


def _mark(results_dir: Path, scale: str, stem: str) -> Path:
    return results_dir / scale / f".{stem}.drawn"


def _digest(study: Study) -> str:
    return hashlib.sha256(repr(study.lines).encode()).hexdigest()


def drawn_files(results_dir: Path, scale: str, stem: str) -> set[Path]:
    """Return the files of an artefact's last complete drawing."""
    mark = _mark(results_dir, scale, stem)
    return {mark.parent / name for name in mark.read_text().splitlines()[1:]} if mark.is_file() else set()


def is_drawn(results_dir: Path, scale: str, stem: str) -> bool:
    """Return whether an artefact was drawn from the lines that have rows now, and all files of the drawing exist."""
    try:
        study = Study(results_dir, scale, stem)
        drawn = _mark(results_dir, scale, stem).read_text().partition("\n")[0]
    except (OSError, ValueError):
        return False
    return drawn == _digest(study) and all(path.is_file() for path in drawn_files(results_dir, scale, stem))


def unmark(results_dir: Path, scale: str, stem: str) -> None:
    """Remove the mark before drawing: an interrupted drawing does not count."""
    _mark(results_dir, scale, stem).unlink(missing_ok=True)


def mark_drawn(study: Study, files: Iterable[Path]) -> None:
    names = "".join(f"\n{path.relative_to(study.folder)}" for path in files)
    write_atomic(_mark(study.results_dir, study.scale, study.stem), _digest(study) + names + "\n")
