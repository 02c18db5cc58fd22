"""The run folder is the truth about a run: its spec, its metrics, its checkpoints, its exported model.

runs/SCALE/NAME-ID/
    spec.json            what the run is (training/spec.py: RunSpec)
    provenance.jsonl     one line per start: code, versions, device
    metrics.jsonl        one line per step, flushed
    anomalies.jsonl      steps that were not applied, with the documents they saw
    checkpoints/         step-XXXXXXXX/ (training/checkpoint.py)
    export/              the trained model for from_pretrained; its presence says the run is finished
    evals/               rows of finished evaluations
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from results.atomic import write_atomic
from training.spec import RunSpec


class RunFolder:
    """Paths and small files of one run. Raises ValueError for a folder that is missing or belongs to another spec."""

    def __init__(self, path: Path):
        self.path = path
        self.spec_file = path / "spec.json"
        self.metrics_file = path / "metrics.jsonl"
        self.provenance_file = path / "provenance.jsonl"
        self.anomalies_file = path / "anomalies.jsonl"
        self.checkpoints = path / "checkpoints"
        self.export = path / "export"
        self.evals = path / "evals"

    @classmethod
    def create(cls, path: Path, spec: RunSpec) -> "RunFolder":
        """Make the folder, or open it if it already holds this very run."""
        folder = cls(path)
        if folder.spec_file.exists():
            found = folder.read_spec()
            if found.run_id != spec.run_id:
                raise ValueError(
                    f"{path} holds run {found.run_id}, not {spec.run_id}: its spec.json was made by other settings. "
                    "Move the folder away, or choose another --runs-dir."
                )
        else:
            try:
                write_atomic(folder.spec_file, spec.to_json())
            except OSError as error:
                raise ValueError(f"cannot write the run folder {path}: {error.strerror}. Choose another --runs-dir.") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        folder = cls(path)
        if not folder.spec_file.is_file():
            raise ValueError(f"{path} is not a run folder: it has no spec.json. `python -m experiments run` makes run folders.")
        return folder

    def read_spec(self) -> RunSpec:
        try:
            return RunSpec.from_json(self.spec_file.read_text())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{self.spec_file} is not a valid run spec: {where}: {first['msg']}") from error

    @property
    def finished(self) -> bool:
        return self.export.is_dir()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; a second process that wants it gets a ValueError."""
        with open(self.path / ".lock", "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{self.path} is being trained by another process; wait for it, or stop it first.") from error
            yield

    def read_metrics(self) -> list[dict]:
        """All whole lines of metrics.jsonl (a line cut by a crash is dropped)."""
        if not self.metrics_file.exists():
            return []
        rows = []
        for line in self.metrics_file.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def truncate(self, step: int) -> None:
        """Forget what was logged after `step`, because the run goes on from there."""
        for path in (self.metrics_file, self.anomalies_file):
            if path.exists():
                kept = []
                for line in path.read_text().splitlines():
                    try:
                        row = json.loads(line)
                    except json.JSONDecodeError:
                        break
                    if row["step"] <= step:
                        kept.append(line + "\n")
                write_atomic(path, "".join(kept))
