"""Run folders, which hold all of a run: its spec, metrics, checkpoints and exported model.

RESULTS/SCALE/runs/NAME-ID/
    spec.json            the run's spec (training/spec.py: RunSpec), whose id is that in the folder's name
    provenance.jsonl     one line per start: code, versions, device, and how it ended
    metrics.jsonl        one line per step, flushed
    anomalies.jsonl      bad steps, which were not applied, with their documents
    checkpoints/         step-XXXXXXXX/ (training/checkpoint.py)
    export/              the trained model for from_pretrained, with a manifest; if complete, the run is finished
    evals/               rows of finished evaluations (results/store.py)
Damaged lines of the .jsonl files are skipped: only the training curve needs every step."""

import errno
import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from results.atomic import write_atomic
from results.lines import Row, last_row, read_lines, to_lines
from results.store import LAST_OLD, id_of, read_rows
from training import manifest
from training.command_line import short
from training.spec import RunSpec

LOCK_WAIT_S = 20.0
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
REMEDY = "put the original back, or delete the folder: its experiment makes it again; for your own settings, add a line to a " \
         "figure's file (CONTRIBUTING.md), of which `run` makes a run folder"  # fmt: skip


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
        if folder.spec_file.exists():
            folder.read_spec()
            return folder
        try:
            write_atomic(folder.spec_file, json.dumps(json.loads(spec.to_json()), indent=1) + "\n")
        except OSError as error:
            raise ValueError(f"cannot write the run folder {path}: {error.strerror}. Choose another --results-dir.") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        folder = cls(path)
        if not folder.spec_file.is_file():
            raise ValueError(f"{path} is not a run folder: it has no spec.json. `python -m experiments run` makes run folders.")
        return folder

    def read_spec(self) -> RunSpec:
        """Return the spec. ValueError if it is damaged or another run's, also after it was edited."""
        try:
            values = json.loads(self.spec_file.read_bytes())
            if "sha256" in values:
                raise ValueError(f"{self.path} was made by an older version: commit {LAST_OLD} is the last that reads it")
            spec = RunSpec.from_json(json.dumps(values))
        except ValidationError as error:
            raise ValueError(f"{self.spec_file} is not a valid run spec: {short(error)}; {REMEDY}") from error
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.spec_file} cannot be read ({type(error).__name__}): {REMEDY}") from None
        if spec.run_id != id_of(self.path):
            raise ValueError(f"{self.spec_file} is the spec of run {spec.run_id}, which its folder does not name: {REMEDY}")
        return spec

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
        starts = self.read_starts()
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
                        remedy = "mount it with locks (Lustre: option `flock`), or choose another --results-dir."
                        raise ValueError(f"{self.path}: its file system has no locks; {remedy}") from error
                    if not isinstance(error, BlockingIOError):
                        raise
                if time.monotonic() > end:
                    raise ValueError(f"{self.path} is being trained by another process; wait for it, or stop it first.")
                time.sleep(0.1)
            yield

    def read_metrics(self) -> list[Row]:
        """Return the readable rows of metrics.jsonl, one per step."""
        return read_lines(self.metrics_file)[0]

    def read_curve(self) -> list[Row]:
        """Return a row for every step of a finished run. ValueError if a line was damaged, then or since."""
        rows, steps = self.read_metrics(), self.read_spec().train.num_steps
        whole = [row["step"] for row in rows] == list(range(1, steps + 1))
        if not whole or manifest.read(self.export).get("metrics") not in (None, manifest.digest(self.metrics_file)):
            lacks = f"{self.metrics_file} does not hold each of the run's {steps} steps as it was trained"
            raise ValueError(f"{lacks}: leave out figures of training curves, or delete {self.path} to train it again")
        return rows

    def last_row(self) -> Row | None:
        """Return the newest readable row of metrics.jsonl."""
        return last_row(self.metrics_file)

    def read_starts(self) -> list[Row]:
        """Return every start: the fields of results/provenance.py, `first_step`, `missing_steps` (of the curve before it, if
        there are any), `params`, `epochs`, and `end` with `exit_code`, `tokens`, `wall_s`, `peak_memory_bytes`. `end` is None
        while it runs; `exit_code` is None if it was killed."""
        return read_lines(self.provenance_file)[0]

    def evaluation_fault(self, eval_id: str) -> str | None:
        """Return what is wrong with an evaluation in evals/, such as another run or other weights, or None."""
        path = self.evals / f"{eval_id}.parquet"
        if not path.is_file() or not self.spec_file.is_file():
            return f"there is no {path} or no {self.spec_file.name}"
        try:
            meta = read_rows(path)[1]
        except ValueError as error:
            return str(error)
        if (meta["run_id"], meta["eval_id"]) != (self.run_id, eval_id):
            return f"{path} does not belong here: it is {meta['eval_id']} of run {meta['run_id']}"
        measured, own = meta["weights"], self.weights
        differ = measured is not None and own is not None and measured != own
        return f"{path} was measured on weights {measured}; the run's are {own}" if differ else None

    def begin_start(self, start: Row) -> int:
        """Add a start, after ending the last if it was killed, and drop the rows after its first step, from which the run
        resumes. Returns how many steps before that are missing in metrics.jsonl."""
        starts = self.read_starts()
        if starts and starts[-1]["end"] is None:
            row, first = self.last_row() or {"step": 0}, starts[-1]["first_step"]
            stepped = row["step"] > first
            tokens = row["tokens"] // row["step"] * (row["step"] - first) if stepped else 0
            end = {"exit_code": None, "tokens": tokens, "wall_s": row["wall_s"] if stepped else 0.0, "peak_memory_bytes": None}
            starts[-1] = {**starts[-1], "end": end}
        kept = {file: read_lines(file)[0] for file in (self.anomalies_file, self.metrics_file) if file.exists()}
        for file, rows in kept.items():
            kept[file] = [row for row in rows if row["step"] <= start["first_step"]]
            write_atomic(file, to_lines(kept[file]))
        missing = start["first_step"] - len({row["step"] for row in kept.get(self.metrics_file, [])})
        write_atomic(self.provenance_file, to_lines([*starts, start | ({"missing_steps": missing} if missing else {})]))
        return missing

    def end_start(self, end: Row) -> None:
        """Record how the last start has ended."""
        *starts, last = self.read_starts()
        write_atomic(self.provenance_file, to_lines([*starts, {**last, "end": end}]))
