"""Collection of finished evaluations: from run folders to stored rows and to the lines of a figure. Torch-free."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from analysis.prediction import LOSSES, numbers
from analysis.study import Line, read_lines, study_file, write_lines
from eval import kinds
from results import store
from results.provenance import commit_name, is_cpu
from training.run_folder import RunFolder

BOUND = 0.01
"""Largest difference in nats that another CPU's rounding makes in the losses of most trainings. Others are judged by seeds."""
ROUNDING = 1e-4
SPEEDS = ("tokens_per_s", "mfu", "mfu_dense")
"""Columns of a training curve that are not compared: they differ each time."""


Relation = Literal["same", "rounded", "other"]
"""Relation of a folder's training to the first stored training of its run; rounded: the same up to another CPU's rounding."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LineSpec:
    """One requested line: `line` without files, its run folder, and the ids of its evaluations."""

    line: Line
    run: Path
    evals: tuple[str, ...]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class DrawSpec:
    """Instructions for an artefact's `draw` job, stored as JSON."""

    stem: str
    scale: str
    results_dir: Path
    lines: tuple[LineSpec, ...]
    draw_these: bool = False

    def to_json(self) -> str:
        return _SPEC.dump_json(self, indent=1).decode() + "\n"

    @staticmethod
    def read(path: Path) -> "DrawSpec":
        """Read the file. ValueError if it cannot be read."""
        try:
            return _SPEC.validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ValueError(f"{path} cannot be read ({type(error).__name__}); `run` writes it again.") from None


_SPEC = TypeAdapter(DrawSpec)


@dataclass
class Collected:
    """Findings of collecting an artefact. `reproduced`: the stored evaluations that are reproduced up to rounding.
    `differing`: evaluations that differ, with the relative difference. `beyond`: evaluations whose mean losses differ by more
    than rounding explains, with both numbers and commits. `parted`: run folders of CPU trainings that differ by that much.
    `left_out`: timings that are not stored, because another CPU's are. `beside`: lines that are drawn from another training of
    their run than the one in the run folder."""

    stem: str
    lines: int = 0
    reproduced: set[str] = field(default_factory=set)
    differing: dict[str, float] = field(default_factory=dict)
    beyond: dict[str, str] = field(default_factory=dict)
    parted: dict[Path, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)


def collect(spec: DrawSpec) -> Collected | None:
    """Store the rows of an artefact's finished evaluations, and write into STEM.json which rows it is drawn from. Returns None
    if there are no rows.

    Stored rows without a run folder here are drawn, too, and earlier lines (other seeds, other models) stay. Nothing that is
    stored changes: a run's record is only written together with new rows. A line stays with the training that it was drawn
    from before, unless `draw_these` asks for the one in the run folder."""
    old = read_lines(spec.results_dir, spec.scale, spec.stem)
    drawn = {(line.place, line.run_id): line for line in old}
    collected = Collected(spec.stem)
    found = [_line(each, drawn.get((each.line.place, each.line.run_id)), spec, collected) for each in spec.lines]
    lines = _joined([line for line in found if line is not None], old)
    if not lines:
        return None
    write_lines(spec.results_dir, spec.scale, spec.stem, lines)
    collected.lines = len(lines)
    return collected


def _line(wanted: LineSpec, old: Line | None, spec: DrawSpec, collected: Collected) -> Line | None:
    """Store the rows in one line's run folder. Returns the line to draw, None without rows. `old`: the line drawn so far."""
    line, results_dir = wanted.line, spec.results_dir
    if not RunFolder(wanted.run).spec_file.is_file():
        return None
    here = _keep_line(wanted, spec, collected)
    if spec.draw_these and here is not None:
        training = here
    elif old is not None and old.is_trained:
        training = old.training
    else:
        training = max(("", here or ""), key=lambda each: len(_files(wanted, each, results_dir)))
    files = _files(wanted, training, results_dir)
    if old is not None:
        files = {**{name: old.files[name] for name in old.files if training == old.training or store.is_fresh(name)}, **files}
        _refuse_lost(files, here not in (None, training), spec)
    if here is not None and here != training and not _files(wanted, here, results_dir).keys() <= files.keys():
        collected.beside.append(f"{line.label}, seed {line.seed} ({here or 'the first'}; drawn: {training or 'the first'})")
    weights = {store.read_meta(results_dir / name).get("weights") for name in files if not store.is_fresh(name)}
    return replace(line, files=files, weights=weights.pop() if len(weights) == 1 else None) if files else None


def _refuse_lost(files: Iterable[str], another: bool, spec: DrawSpec) -> None:
    """Raise ValueError, with a remedy, if rows that a line was drawn from are missing. `another`: the run folder has another
    training than these rows, so that `run` would not make them again."""
    for name in files:
        rows = spec.results_dir / name
        for path in (each for each in (rows, store.meta_path(rows)) if not each.is_file()):
            remedy = f"delete {study_file(spec.results_dir, spec.scale, spec.stem)}, which `run` writes again"
            if another and not store.is_fresh(name):
                remedy = "draw the training in the run folder with --draw-these-trainings"
            raise ValueError(f"{path} is lost: bring it back (git restore), or {remedy}")


def _keep_line(wanted: LineSpec, spec: DrawSpec, collected: Collected) -> str | None:
    """Store the rows in a line's run folder. Returns the training that they belong to: empty for the run's first, the first
    digits of the weights' digest for another; None if there are no rows."""
    folder, line, results_dir = RunFolder(wanted.run), wanted.line, spec.results_dir
    sources = [eval_id for eval_id in wanted.evals if folder.evaluation_fault(eval_id) is None]
    if not sources:
        return None
    record_file = store.run_file(results_dir, line.scale, line.run_id)
    known = store.read_run(record_file) if record_file.is_file() else None
    how, far = relation(known, folder)
    if far and not spec.draw_these:
        collected.parted[folder.path] = far
    own = (folder.weights or "")[:8] if how != "same" else ""
    of_first = {each for each in sources if store.fault_of(_stored_at(wanted, each, results_dir)) is None}
    if how != "same" and not own:  # without a digest to store them under, rows are only compared
        sources = [each for each in sources if each in of_first]
    compared = of_first if how == "rounded" and not spec.draw_these else ()
    names = {each: "" if store.is_fresh(each) or each in compared else own for each in sources}
    places = {each: _stored_at(wanted, each, results_dir, names[each]) for each in sources}
    if known is None or any(store.fault_of(path) is not None for path in places.values()):
        store.record_run(results_dir, folder.record())
    for eval_id, place in places.items():
        _keep(wanted, eval_id, place, names[eval_id], results_dir, collected, rounded=how == "rounded")
    return max((name for eval_id, name in names.items() if not store.is_fresh(eval_id)), default=None)


def _files(wanted: LineSpec, training: str, results_dir: Path) -> dict[str, str]:
    """Stored rows of a line with their digests: those of one training and of untrained models."""
    places = [_stored_at(wanted, each, results_dir, "" if store.is_fresh(each) else training) for each in wanted.evals]
    metas = {path: store.read_evaluation(path, wanted.line.run_id)[1] for path in places if store.fault_of(path) is None}
    return {str(path.relative_to(results_dir)): meta["rows_sha256"] for path, meta in metas.items()}


def is_collected(spec: DrawSpec) -> bool:
    """Return whether an artefact's lines hold every requested evaluation, or stay with another training."""
    try:
        there = {line.place: line for line in read_lines(spec.results_dir, spec.scale, spec.stem)}
    except ValueError:
        return False
    wanted = [(each, there.get(each.line.place)) for each in spec.lines]
    return not spec.draw_these and all(line and _is_collected(each, line, spec.results_dir) for each, line in wanted)


def drawn_file(results_dir: Path, scale: str, stem: str) -> Path:
    """Return the file that marks an artefact as drawn. It is written last, and lists the drawing's files, one per line."""
    return results_dir / scale / f".{stem}.drawn"


def is_drawn(spec: DrawSpec) -> bool:
    """Return whether an artefact was drawn completely after its lines were written, and all files of the drawing exist."""
    drawn, lines = (place(spec.results_dir, spec.scale, spec.stem) for place in (drawn_file, study_file))
    try:
        names, newer = drawn.read_text().splitlines(), drawn.stat().st_mtime_ns >= lines.stat().st_mtime_ns
    except OSError:
        return False
    return newer and all((drawn.parent / name).is_file() for name in names)


def _is_collected(wanted: LineSpec, line: Line, results_dir: Path) -> bool:
    for eval_id in wanted.evals:
        trainings = {"", RunFolder(wanted.run).weights or "", line.training}
        places = {_stored_at(wanted, eval_id, results_dir, each) for each in trainings}
        whole = [path for path in places if store.fault_of(path) is None]
        drawn = {path for path in places if str(path.relative_to(results_dir)) in line.files}
        of_others = bool(whole) and all(map(store.training_in_name, whole)) and line.run_id == wanted.line.run_id
        if not drawn <= {*whole} or not (drawn or of_others):
            return False
    return True


def _stored_at(wanted: LineSpec, eval_id: str, results_dir: Path, training: str = "") -> Path:
    """Return the path of an evaluation's rows in the store. For a timing of this CPU, that is the path of the same timing of
    another CPU if there is one: a user's CPU adds nothing to what is published."""
    own = store.rows_file(results_dir, wanted.line.scale, wanted.line.run_id, eval_id, training)
    source = RunFolder(wanted.run).evals / f"{eval_id}.parquet"
    if training or not eval_id.startswith(kinds.TIMED) or own.is_file() or store.fault_of(source) is not None:
        return own
    mine = kinds.EVAL_SPEC.validate_json(json.dumps(store.read_meta(source)["spec"]))
    for path in sorted(own.parent.glob(f"{wanted.line.run_id}-*.parquet")) if is_cpu(mine.machine or "") else ():
        if store.fault_of(path) is None:
            machine = store.read_meta(path)["spec"]["machine"] or ""
            if is_cpu(machine) and kinds.eval_id(replace(mine, machine=machine)) == store.read_meta(path)["eval_id"]:
                return path
    return own


def _keep(
    wanted: LineSpec, eval_id: str, place: Path, training: str, results_dir: Path, collected: Collected, *, rounded: bool
) -> None:
    """Store an evaluation's rows, or note how stored ones differ. `rounded`: the stored training differs by rounding."""
    folder, name = RunFolder(wanted.run), f"{eval_id} of {wanted.run.name}"
    if place != store.rows_file(results_dir, wanted.line.scale, wanted.line.run_id, eval_id, training):
        collected.left_out.append(name)
        return
    source = folder.evals / f"{eval_id}.parquet"
    stored, difference = store.keep(source, results_dir, but=SPEEDS, weights=training)
    if difference is None or eval_id.startswith(kinds.TIMED):
        return
    if difference <= ROUNDING:
        collected.reproduced.add(name)
    elif far := _beyond(source, stored, folder.read_spec().train.seq_len):
        if rounded:
            collected.parted.setdefault(folder.path, f"{eval_id}, {far}")
        else:
            collected.beyond[name] = far
    else:
        collected.differing[name] = difference


def _beyond(source: Path, stored: Path, train_len: int) -> str:
    """Say by how much mean losses differ if that is more than BOUND; empty if it is not, and for evaluations without losses."""
    (here, mine), (there, meta) = store.read_rows(source, store.META), store.read_rows(stored, store.META)
    if meta["kind"] not in LOSSES:
        return ""
    for one, other in zip(*(numbers(meta["kind"], rows, train_len).values() for rows in (here, there)), strict=True):
        if not abs(one - other) <= BOUND:  # NaN is not explained by rounding, either
            return _apart((other, meta["provenance"]), (one, mine["provenance"]))
    return ""


def _joined(new: list[Line], old: list[Line]) -> list[Line]:
    """Merge lines by place: old lines keep their order, and a new line replaces the old one of its place. A new place follows
    the line that is declared before it, or else precedes those that are declared after it."""
    lines = {line.place: line for line in old}
    order = list(lines)
    for index, line in enumerate(new):
        if line.place not in lines:
            after = min((order.index(each.place) for each in new if each.place in order), default=len(order))
            order.insert(order.index(new[index - 1].place) + 1 if index else after, line.place)
        lines[line.place] = line
    return [lines[place] for place in order]


def relation(known: dict[str, Any] | None, folder: RunFolder) -> tuple[Relation, str]:
    """Compare a folder's training with the first training in its run's record `known`. They are the same unless something tells
    them apart. If both ran on CPUs and rounding does not explain the difference (most likely the code differs), also say how
    far apart they ended. ValueError if the folder's record of its training is damaged."""
    stored = store.trainings_of(known) if known is not None else []
    if known is None or not stored or folder.read_spec().weights or folder.weights == stored[0]["weights"] is not None:
        return "same", ""
    first, record = stored[0], folder.record()
    mine = next(iter(record["trainings"]), None)
    if mine is None or store.is_training(first, mine):
        return "same", ""
    theirs, ours = store.starts_of(known, first), store.starts_of(record, mine)
    before, loss = first["final_loss"], mine["final_loss"]
    if None in (before, loss) or not (trained_on_cpu(theirs) and trained_on_cpu(ours)):
        return "other", ""
    if abs(before - loss) <= BOUND:
        return "rounded", ""
    return "other", _apart((before, theirs[-1]), (loss, ours[-1]))


def _apart(stored: tuple[float, dict[str, Any]], here: tuple[float, dict[str, Any]]) -> str:
    """Say how far two losses are apart, each with the commit and the device that measured it."""
    mine, theirs = (f"{commit_name(maker)} on {maker.get('device')}" for _, maker in (here, stored))
    return f"{here[0]:.4f} nats by commit {mine}, {stored[0]:.4f} stored, by {theirs}"


def trained_on_cpu(starts: Sequence[dict[str, Any]]) -> bool:
    """Return whether all starts of a training ran on CPUs, whose labels end with their threads."""
    devices = [str(start.get("device")) for start in starts]
    return bool(devices) and all(device.endswith(")") and " thread" in device for device in devices)
