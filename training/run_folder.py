"""Run folders, which hold all of a run: its spec, metrics, checkpoints and exported model.

runs/SCALE/NAME-ID/
    spec.json            the run's spec (training/spec.py: RunSpec), sealed
    provenance.jsonl     one line per start: code, versions, device, and how it ended
    metrics.jsonl        one line per step, flushed
    anomalies.jsonl      bad steps, which were not applied, with their documents
    checkpoints/         step-XXXXXXXX/ (training/checkpoint.py)
    export/              the trained model for from_pretrained, with a manifest; if complete, the run is finished
    evals/               rows of finished evaluations
Each line of the .jsonl files carries a CRC (training/lines.py). Manifests and lines belong to one run: files copied from
another run's folder count as damaged."""

import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from results.atomic import write_atomic
from results.sealed import SEAL, read_sealed, write_sealed
from results.store import fault_of, read_meta
from training import manifest
from training.command_line import short
from training.lines import Row, line, read_line, read_lines
from training.spec import RunSpec

LOCK_WAIT_S = 20.0
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
OWN_SETTINGS = "for your own settings, add a line to a figure's file (CONTRIBUTING.md), of which `run` makes a run folder"


class RunFolder:
    """Paths and small files of one run. Raises ValueError for a folder that is missing or belongs to another spec."""

    def __init__(self, path: Path):
        self.path, self.spec_file = path, path / "spec.json"
        self.metrics_file, self.provenance_file = path / "metrics.jsonl", path / "provenance.jsonl"
        self.anomalies_file = path / "anomalies.jsonl"
        self.checkpoints, self.export, self.evals = path / "checkpoints", path / "export", path / "evals"

    @classmethod
    def create(cls, path: Path, spec: RunSpec) -> "RunFolder":
        """Make the folder, or open it if it already holds this very run."""
        folder = cls(path)
        if not folder.spec_file.exists():
            try:
                write_sealed(folder.spec_file, json.loads(spec.to_json()))
            except OSError as error:
                raise ValueError(f"cannot write the run folder {path}: {error.strerror}. Choose another --runs-dir.") from error
        elif folder.run_id != spec.run_id:
            reason = f"{path} holds run {folder.run_id}, not {spec.run_id}: its spec.json has other settings"
            raise ValueError(f"{reason}. Move the folder away, or choose another --runs-dir.")
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        folder = cls(path)
        if not folder.spec_file.is_file():
            raise ValueError(f"{path} is not a run folder: it has no spec.json. `python -m experiments run` makes run folders.")
        return folder

    def read_spec(self) -> RunSpec:
        """Return the spec. ValueError also if it was edited after the run began, as the folder's content would not match it."""
        remedy = f"put the original back, or delete the folder: its experiment makes it again; {OWN_SETTINGS}"
        try:
            values = read_sealed(self.spec_file, remedy)
        except ValueError:
            self._check_fields(remedy)  # names the wrong field, if there is one
            raise
        return _spec_of(self.spec_file, values, remedy)

    def _check_fields(self, remedy: str) -> None:
        """Raise a ValueError that names the field if the spec is invalid apart from its broken seal."""
        with suppress(OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            values = json.loads(self.spec_file.read_text(encoding="utf-8"))
            if isinstance(values, dict):
                _spec_of(self.spec_file, {name: value for name, value in values.items() if name != SEAL}, remedy)

    @cached_property
    def run_id(self) -> str:
        """Id of the run in this folder, from its spec."""
        return self.read_spec().run_id

    @property
    def finished(self) -> bool:
        """Tell whether the exported model is there, judged by the sizes of its files (`check_export` reads them)."""
        return self.export_fault(digests=False) is None

    def export_fault(self, *, digests: bool) -> str | None:
        """Return what is wrong with the exported model (it may be another run's), or None."""
        if not (self.export / manifest.MANIFEST).is_file() or not self.spec_file.is_file():
            return f"there is no {self.export / manifest.MANIFEST} or no {self.spec_file.name}"
        return manifest.fault(self.export, digests=digests, run_id=self.run_id)

    def check_export(self) -> None:
        """Check the exported model against its digests. Raises ValueError if it is damaged, or another run's."""
        if (fault := self.export_fault(digests=True)) is not None:
            remedy = "Delete it and run its experiment again, which trains what is missing."
            raise ValueError(f"{self.export} is damaged: {fault}. {remedy}")

    @property
    def weights(self) -> str | None:
        """Digest of the exported weights, or else of those that the last start exported; None if it exported none."""
        if self.finished:
            return manifest.weights(self.export)
        starts = read_lines(self.provenance_file, self.run_id)[0] if self.provenance_file.is_file() else []
        return (starts[-1]["end"] or {}).get("weights") if starts else None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run for this process. A second process waits, in case the first is about to exit, then gets a ValueError.
        ValueError, too, on a file system without locks."""
        end = time.monotonic() + LOCK_WAIT_S
        with open(self.path / ".lock", "a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno in NO_LOCKS:
                        remedy = "mount it with locks (Lustre: option `flock`), or choose another --runs-dir."
                        raise ValueError(f"{self.path}: its file system has no locks; {remedy}") from error
                    if not isinstance(error, BlockingIOError):
                        raise
                if time.monotonic() > end:
                    raise ValueError(f"{self.path} is being trained by another process; wait for it, or stop it first.")
                time.sleep(0.1)
            yield

    def read_metrics(self) -> list[Row]:
        """Return a row per step: all steps of a finished run (none for adopted weights), else the undamaged rows so far.
        ValueError: the run is finished, and a line is damaged or a step is missing."""
        rows, spec = read_lines(self.metrics_file, self.run_id)[0], self.read_spec()
        num_steps = spec.train.num_steps
        if self.finished and spec.weights is None and not _complete(rows, num_steps):
            lacks = f"does not hold each of the run's {num_steps} steps once ({len(rows)} lines are undamaged)"
            remedy = f"restore it from a copy or, if there is none, delete {self.path} and run its experiment again"
            raise ValueError(f"{self.metrics_file} {lacks}: {remedy}")
        return rows

    def last_row(self) -> Row | None:
        """Return the newest undamaged row of metrics.jsonl, for showing progress; reads only the end of the file."""
        with suppress(OSError), open(self.metrics_file, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            texts = reversed(file.read().split(b"\n"))
            return next(filter(None, (read_line(text, self.run_id) for text in texts)), None)
        return None

    def truncate(self, step: int) -> bool:
        """Drop the rows after `step`, from which the run resumes. Returns False if earlier steps are missing."""
        for path in (path for path in (self.anomalies_file, self.metrics_file) if path.exists()):
            self._write(path, [row for row in read_lines(path, self.run_id)[0] if row["step"] <= step])
        return _complete(read_lines(self.metrics_file, self.run_id)[0], step)

    def read_starts(self) -> list[Row]:
        """Return every start: the fields of results/provenance.py, `first_step`, `params`, `epochs`, and `end` with
        `exit_code`, `tokens`, `wall_s`, `peak_memory_bytes`. `end` is None while it runs; `exit_code` is None if it was killed.

        ValueError: a line is damaged, or there is no line though the run is finished."""
        starts, damaged = read_lines(self.provenance_file, self.run_id)
        if damaged or (not starts and self.finished and self.read_spec().weights is None):
            has = f"{self.provenance_file} has {damaged} damaged lines and {len(starts)} undamaged ones"
            remedy = f"delete the damaged ones (their records of starts are lost), or delete {self.path}"
            raise ValueError(f"{has}: {remedy} and run its experiment again")
        return starts

    def evaluation_fault(self, eval_id: str) -> str | None:
        """Return what is wrong with an evaluation in evals/, such as another run or other weights, or None."""
        path = self.evals / f"{eval_id}.parquet"
        if not path.is_file() or not self.spec_file.is_file():
            return f"there is no {path} or no {self.spec_file.name}"
        if (fault := fault_of(path, run_id=self.run_id, scale=self.read_spec().scale, eval_id=eval_id)) is not None:
            return fault
        measured, own = read_meta(path).get("weights"), self.weights
        differ = measured is not None and own is not None and measured != own
        return f"{path} was measured on weights {measured}; the run's are {own}" if differ else None

    def record(self) -> Row:
        """Return what is stored about a run: its spec, every start, and its training if that has ended (even if its weights
        are gone): the digest of the weights, the dates of its starts, its final loss (None if that is not finite)."""
        spec, last, starts = self.read_spec(), self.last_row(), self.read_starts()
        ended = self.finished or (last is not None and last["tokens"] >= spec.train.train_tokens)
        rows = self.read_metrics() if ended else []
        final_loss = rows[-1]["loss"] if rows and math.isfinite(rows[-1]["loss"]) else None
        first = max((index for index, start in enumerate(starts) if not start["first_step"]), default=0)
        dates = [start["date"] for start in starts[first:]]
        trainings = [{"weights": self.weights, "starts": dates, "final_loss": final_loss}] if ended else []
        told = {"run_id": spec.run_id, "scale": spec.scale, "name": spec.name, "spec": json.loads(spec.to_json())}
        return {**told, "starts": starts, "trainings": trainings, "final_loss": final_loss}

    def begin_start(self, start: Row) -> int:
        """Add a start (before `truncate`); end the last if it was killed. Returns the number of dropped damaged lines."""
        starts, damaged = read_lines(self.provenance_file, self.run_id)
        if starts and starts[-1]["end"] is None:
            row, first = self.last_row() or {"step": 0}, starts[-1]["first_step"]
            stepped = row["step"] > first
            tokens = row["tokens"] // row["step"] * (row["step"] - first) if stepped else 0
            end = {"exit_code": None, "tokens": tokens, "wall_s": row["wall_s"] if stepped else 0.0, "peak_memory_bytes": None}
            starts[-1] = {**starts[-1], "end": end}
        self._write(self.provenance_file, [*starts, start])
        return damaged

    def end_start(self, start: Row, end: Row) -> None:
        """Record how `start`, the last one that `begin_start` added, has ended."""
        starts = [other for other in read_lines(self.provenance_file, self.run_id)[0] if other != start]
        self._write(self.provenance_file, [*starts, {**start, "end": end}])

    def _write(self, path: Path, rows: list[Row]) -> None:
        write_atomic(path, "".join(line(row, self.run_id) for row in rows))


def _spec_of(file: Path, values: dict[str, Any], remedy: str) -> RunSpec:
    """Build the spec from a file's values. Raises a ValueError that names the wrong field."""
    try:
        return RunSpec.from_json(json.dumps(values))
    except ValidationError as error:
        raise ValueError(f"{file} is not a valid run spec: {short(error)}; {remedy}") from error


def _complete(rows: list[Row], num_steps: int) -> bool:
    return [row["step"] for row in rows] == list(range(1, num_steps + 1))
