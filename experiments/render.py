"""Rendering: every figure and table of a scale from its stored rows alone, and the report. Torch-free."""

import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from analysis import report
from analysis.study import Study, study_file
from experiments.artefact import Artefact, artefacts
from experiments.pages import write_pages
from experiments.scales import get_scale
from experiments.status import write_claims, write_status


def render(stem: str, scale: str, results_dir: Path) -> list[Path]:
    """Draw an artefact from its stored rows alone. ValueError where there are none."""
    return artefacts()[stem].draw(Study(results_dir, scale, stem))


def render_all(stems: Iterable[str], scale: str, results_dir: Path, console: Console) -> list[str]:
    """Draw artefacts, and write the report, the page of what is stored and the pages of prose. Returns those that could not be
    drawn; each is named, with its error, on stderr."""
    broken, studies = [], {}
    for stem in stems:
        try:
            studies[stem] = Study(results_dir, scale, stem)
            for path in artefacts()[stem].draw(studies[stem]):
                console.print(f"[green]drawn[/] {path}")
        except OSError:
            raise  # a full disk, say: no other could be written either
        except Exception as error:  # one figure's mistake must not cost the others
            broken.append(stem)
            print(f"error: {stem} at {scale} is not drawn: {type(error).__name__}: {error}", file=sys.stderr)
            if not isinstance(error, ValueError):
                traceback.print_exc()
    console.print(f"[green]report[/] {write_report(scale, results_dir, studies)}")
    write_status(results_dir)
    write_claims(scale, results_dir, studies)
    left = write_pages(results_dir, studies.values())
    for page, why in left.items():  # no failure: other rows need not bear out what is said of ours
        print(f"note: {page} stays as it was: {why}", file=sys.stderr)
    return broken


def stored(scale: str, results_dir: Path) -> list[str]:
    """Return the artefacts that have lines at a scale."""
    return [stem for stem in artefacts() if study_file(results_dir, scale, stem).is_file()]


def write_report(scale: str, results_dir: Path, read: Mapping[str, Study] = MappingProxyType({})) -> Path:
    """Write results/SCALE/report.html from everything that is stored at that scale. `read`: studies that were just drawn."""
    sections = [_section(artefact, scale, results_dir, read.get(artefact.stem)) for artefact in artefacts().values()]
    return report.build(results_dir / scale, sections)


def _section(artefact: Artefact, scale: str, results_dir: Path, read: Study | None) -> report.Section:
    study, missing, fault = None, [], ""
    if study_file(results_dir, scale, artefact.stem).is_file():
        try:
            study = (read or Study(results_dir, scale, artefact.stem)).whole()
            there = {line.series for line in study.lines}
            missing = [each.label for each in artefact.runs(get_scale(scale), (0,)) if each.series not in there]
        except ValueError as error:
            study, fault = None, str(error)
    return report.Section(
        stem=artefact.stem,
        title=artefact.title,
        paper=artefact.paper,
        shows=artefact.shows,
        claims=artefact.claims,
        looks=artefact.looks,
        summary=artefact.summary,
        study=study,
        command=f"python -m experiments run {artefact.stem} --scale {scale}",
        missing=tuple(dict.fromkeys(missing)),
        fault=fault,
    )
