"""From finished evaluations in run folders to stored rows, an artefact's lines, its drawing and the report. Torch-free."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import report
from analysis.study import Line, Place, Study, read_lines, study_file, write_lines
from experiments.artefact import Artefact, artefacts
from experiments.scales import get_scale
from results.store import fault_of, keep, read_rows, record_run, rows_file
from training.run_folder import RunFolder

if TYPE_CHECKING:
    from experiments.plan import Plan

ROUNDING = 1e-4
TIMED = ("throughput", "attention_speed")
"""Kinds whose rows differ from time to time."""
SPEEDS = ("tokens_per_s", "mfu", "mfu_dense")
"""Columns of a training's curve that do."""


@dataclass
class Collected:
    """What collecting an artefact found. `met` and `differing`: evaluations that were stored already, and equal up to rounding
    or not, with the relative difference."""

    stem: str
    lines: int
    met: int
    differing: dict[str, float]


def collect(drawing: dict[str, Any]) -> Collected | None:
    """Keep the rows of an artefact's finished evaluations and say in STEM.json what it is drawn from; None if there is nothing.

    Rows that are in the store but in no run folder here are drawn, too, and lines drawn before stay: other seeds, other models.
    """
    stem, scale, results_dir = drawing["stem"], drawing["scale"], Path(drawing["results_dir"])
    found: list[Line] = []
    collected = Collected(stem, 0, 0, {})
    for wanted in drawing["lines"]:
        folder = RunFolder(Path(wanted["run"]))
        if not folder.spec_file.is_file():
            continue
        spec = folder.read_spec()
        files = {}
        for eval_id in wanted["evals"]:
            path = _kept(folder, spec.scale, spec.run_id, eval_id, results_dir, collected)
            if path is not None:
                files[str(path.relative_to(results_dir))] = read_rows(path)[1]["rows_sha256"]
        if files:
            record_run(results_dir, folder.record())
            found.append(Line(wanted["label"], wanted["axes"], wanted["model"], wanted["seed"], spec.scale, spec.run_id, files))
    lines = _joined(found, read_lines(results_dir, scale, stem))
    if not lines:
        return None
    write_lines(results_dir, scale, stem, lines)
    collected.lines = len(lines)
    return collected


def _kept(folder: RunFolder, scale: str, run_id: str, eval_id: str, results_dir: Path, collected: Collected) -> Path | None:
    """Where an evaluation's rows are stored, put there now if need be; None if it is not finished anywhere."""
    source = folder.evals / f"{eval_id}.parquet"
    stored = rows_file(results_dir, scale, run_id, eval_id)
    if fault_of(source) is not None:
        return stored if fault_of(stored) is None else None
    path, difference = keep(source, results_dir, but=SPEEDS)
    if difference is not None and not eval_id.startswith(TIMED):
        if difference <= ROUNDING:
            collected.met += 1
        else:
            collected.differing[f"{eval_id} of {folder.path.name}"] = difference
    return path


def _joined(new: list[Line], old: list[Line]) -> list[Line]:
    """Return the old lines in their order, each replaced by the new line of its place (of the same run with the files of both).
    A new place comes behind the line that is declared before it, or else before those that are declared after it."""
    lines = {line.place: line for line in old}
    order = list(lines)
    for index, line in enumerate(new):
        before = lines.get(line.place)
        if before is None:
            order.insert(order.index(new[index - 1].place) + 1 if index else _first(new, order), line.place)
        elif before.run_id == line.run_id:
            line = replace(line, files={**before.files, **line.files})
        lines[line.place] = line
    return [lines[place] for place in order]


def _first(new: list[Line], order: list[Place]) -> int:
    """Index of the first of the new lines' places that is there already, or the end."""
    return min((order.index(line.place) for line in new if line.place in order), default=len(order))


def draw_from_file(path: Path) -> Collected | None:
    """`draw FILE`: collect, draw and report what the file says (graph.drawing)."""
    try:
        drawing = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({type(error).__name__}); `run` writes it again.") from None
    collected = collect(drawing)
    if collected is not None:
        render(drawing["stem"], drawing["scale"], Path(drawing["results_dir"]))
        write_report(drawing["scale"], Path(drawing["results_dir"]))
    return collected


def render(stem: str, scale: str, results_dir: Path) -> list[Path]:
    """Draw an artefact from its stored rows alone. ValueError where there are none."""
    return artefacts()[stem].drawing().draw(Study(results_dir, scale, stem))


def stored(scale: str, results_dir: Path) -> list[str]:
    """The artefacts that have lines at a scale."""
    return [stem for stem in artefacts() if study_file(results_dir, scale, stem).is_file()]


def write_report(scale: str, results_dir: Path) -> Path:
    """results/SCALE/report.html from everything that is stored at that scale."""
    there = stored(scale, results_dir)
    sections = [_section(artefact, scale, results_dir, stem in there) for stem, artefact in artefacts().items()]
    return report.build(results_dir / scale, sections)


def _section(artefact: Artefact, scale: str, results_dir: Path, is_stored: bool) -> report.Section:
    return report.Section(
        stem=artefact.stem,
        title=artefact.title,
        paper=artefact.paper,
        shows=artefact.shows,
        claims=artefact.claims,
        study=Study(results_dir, scale, artefact.stem) if is_stored else None,
        drawing=artefact.drawing(),
        command=f"python -m experiments run {artefact.stem} --scale {scale}",
        missing=_missing(artefact, scale, results_dir) if is_stored else (),
    )


def _missing(artefact: Artefact, scale: str, results_dir: Path) -> tuple[str, ...]:
    """Labels of the series that an artefact declares and that no stored line is of."""
    there = {line.series for line in read_lines(results_dir, scale, artefact.stem)}
    return tuple(dict.fromkeys(r.label for r in artefact.runs(get_scale(scale), (0,)) if r.series not in there))


def drawn(plan: "Plan", stem: str) -> bool:
    """Whether an artefact's lines hold every evaluation of every run of the plan, and the report is there."""
    results_dir, scale = plan.request.results_dir, plan.scale.name
    try:
        there = {line.place: line.files for line in read_lines(results_dir, scale, stem)}
    except ValueError:
        return False
    from eval.kinds import eval_id

    for line in plan.lines[stem]:
        recipe = line.recipe
        files = there.get(recipe.place, {})
        for spec in line.evals:
            path = rows_file(results_dir, recipe.scale, line.run_id, eval_id(spec))
            if str(path.relative_to(results_dir)) not in files or fault_of(path) is not None:
                return False
    return (results_dir / scale / "report.html").is_file()
