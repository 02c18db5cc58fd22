"""From finished evaluations in run folders to stored rows, an artefact's lines, its drawing and the report. Torch-free."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import report
from analysis.study import Line, Study, read_lines, study_file, write_lines
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
            found.append(Line(wanted["label"], wanted["model"], wanted["seed"], spec.scale, spec.run_id, files))
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
    """New lines, and the old ones whose place none of them takes; of the same run the files of both. Where every place is known
    the old order stays, so that doing all again changes nothing."""
    known = {line.place: line for line in old}
    lines = {}
    for line in new:
        before = known.get(line.place)
        if before is not None and before.run_id == line.run_id:
            line = Line(line.label, line.model, line.seed, line.scale, line.run_id, {**before.files, **line.files})
        lines[line.place] = line
    return list({**known, **lines}.values() if known.keys() >= lines.keys() else {**lines, **known, **lines}.values())


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
    """Labels that an artefact declares and that no stored line has."""
    there = {line.label for line in read_lines(results_dir, scale, artefact.stem)}
    return tuple(dict.fromkeys(r.label for r in artefact.runs(get_scale(scale), (0,)) if r.label not in there))


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
        files = there.get((recipe.label, recipe.name, recipe.scale, recipe.seed), {})
        for spec in line.evals:
            path = rows_file(results_dir, recipe.scale, line.run_id, eval_id(spec))
            if str(path.relative_to(results_dir)) not in files or fault_of(path) is not None:
                return False
    return (results_dir / scale / "report.html").is_file()
