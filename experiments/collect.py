"""Collecting: from finished evaluations in run folders to stored rows, and to the lines of a figure. Torch-free."""

import json
from dataclasses import field, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from analysis.study import Line, Place, read_lines, write_lines
from eval.kinds import EVAL_SPEC
from eval.kinds import eval_id as id_of
from eval.shell.machine import is_cpu
from results.sealed import read_sealed
from results.store import META, REMEDY, Meta, fault_of, keep, meta_path, read_rows, record_run, rows_file, run_file
from training.run_folder import RunFolder

ROUNDING = 1e-4
TIMED = ("throughput", "attention_speed")
"""Kinds whose rows differ from time to time."""
SPEEDS = ("tokens_per_s", "mfu", "mfu_dense")
"""Columns of a training's curve that do."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LineSpec:
    """One line that is wanted: `line` without files, its run folder, and the ids of its evaluations."""

    line: Line
    run: Path
    evals: tuple[str, ...]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class DrawSpec:
    """What the `draw` job of an artefact is told, in a file of JSON."""

    stem: str
    scale: str
    results_dir: Path
    lines: tuple[LineSpec, ...]

    def to_json(self) -> str:
        return _SPEC.dump_json(self, indent=1).decode() + "\n"

    @staticmethod
    def read(path: Path) -> "DrawSpec":
        """Read the file. ValueError where it cannot be read."""
        try:
            return _SPEC.validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ValueError(f"{path} cannot be read ({type(error).__name__}); `run` writes it again.") from None


_SPEC = TypeAdapter(DrawSpec)


@dataclass
class Collected:
    """What collecting an artefact found. `met` and `differing`: evaluations that were stored already, and equal up to rounding
    or not, with the relative difference. `left_out`: timings of this CPU, where those of another one are stored."""

    stem: str
    lines: int = 0
    met: int = 0
    differing: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def collect(spec: DrawSpec) -> Collected | None:
    """Keep the rows of an artefact's finished evaluations and say in STEM.json what it is drawn from; None if there is nothing.

    Rows that are in the store but in no run folder here are drawn, too, and lines drawn before stay: other seeds, other models.
    What is stored already stays as it is: a run's record is written only with new rows of it.
    """
    found: list[Line] = []
    collected = Collected(spec.stem)
    for wanted in spec.lines:
        folder, line = RunFolder(wanted.run), wanted.line
        if not folder.spec_file.is_file():
            continue
        files, is_new = {}, not run_file(spec.results_dir, line.scale, line.run_id).is_file()
        for eval_id in wanted.evals:
            place = _stored_at(wanted, eval_id, spec.results_dir)
            stored = fault_of(place) is None
            if fault_of(_source(wanted, eval_id)) is None:
                _keep(wanted, eval_id, place, spec.results_dir, collected)
                is_new |= not stored
            elif not stored:
                continue
            files[str(place.relative_to(spec.results_dir))] = read_rows(place)[1]["rows_sha256"]
        if files:
            if is_new:
                record_run(spec.results_dir, folder.record())
            found.append(replace(line, files=files))
    lines = _joined(found, read_lines(spec.results_dir, spec.scale, spec.stem))
    if not lines:
        return None
    write_lines(spec.results_dir, spec.scale, spec.stem, lines)
    collected.lines = len(lines)
    return collected


def is_collected(spec: DrawSpec) -> bool:
    """Return whether an artefact's lines hold every evaluation that is wanted of it."""
    try:
        there = {line.place: line.files for line in read_lines(spec.results_dir, spec.scale, spec.stem)}
    except ValueError:
        return False
    places = [(each.line.place, _stored_at(each, eval_id, spec.results_dir)) for each in spec.lines for eval_id in each.evals]
    return all(
        str(path.relative_to(spec.results_dir)) in there.get(place, {}) and fault_of(path) is None for place, path in places
    )


def _source(wanted: LineSpec, eval_id: str) -> Path:
    return RunFolder(wanted.run).evals / f"{eval_id}.parquet"


def _stored_at(wanted: LineSpec, eval_id: str, results_dir: Path) -> Path:
    """Return the place of an evaluation's rows in the store. A timing of this CPU has that of the same timing of another CPU
    where there is one: a user's own CPU adds nothing to what is published."""
    own = rows_file(results_dir, wanted.line.scale, wanted.line.run_id, eval_id)
    source = _source(wanted, eval_id)
    if not eval_id.startswith(TIMED) or own.is_file() or fault_of(source) is not None:
        return own
    mine = EVAL_SPEC.validate_json(json.dumps(_meta(source)["spec"]))
    for path in sorted(own.parent.glob(f"{wanted.line.run_id}-*.parquet")) if is_cpu(mine.machine or "") else ():
        if fault_of(path) is None:
            machine = _meta(path)["spec"]["machine"] or ""
            if is_cpu(machine) and id_of(replace(mine, machine=machine)) == _meta(path)["eval_id"]:
                return path
    return own


def _meta(path: Path) -> Meta:
    return read_sealed(meta_path(path), REMEDY, META)


def _keep(wanted: LineSpec, eval_id: str, place: Path, results_dir: Path, collected: Collected) -> None:
    """Put an evaluation's rows into the store, or say how those that are there differ."""
    if place != rows_file(results_dir, wanted.line.scale, wanted.line.run_id, eval_id):
        collected.left_out.append(f"{eval_id} of {wanted.run.name}")
        return
    _, difference = keep(_source(wanted, eval_id), results_dir, but=SPEEDS)
    if difference is not None and not eval_id.startswith(TIMED):
        if difference <= ROUNDING:
            collected.met += 1
        else:
            collected.differing[f"{eval_id} of {wanted.run.name}"] = difference


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
