"""Jobs and submissions, stored in runs/SCALE/plans/submissions/ID.json: written before sbatch is called, read by the jobs.
The comment and the name of every job contain its submission and batch, so that a job whose id was never recorded can be
identified.

Standard library only: on clusters with containers a job's epilogue runs on the host's python3."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments.task import Task
from slurm import client
from slurm.client import QueuedJob


@dataclass(frozen=True)
class Resources:
    """Processes, GPUs and time of one job. A SLURM task is one process; `gpu_hours` is the estimate for all starts together;
    `memory` is a multiple of the cluster file's value."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    minutes: int
    gpu_hours: float = 0.0
    memory: float = 1.0

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class Job(Task):
    """A task of a plan as a SLURM job, with the resources it asks for."""

    resources: Resources

    @classmethod
    def read(cls, values: dict[str, Any]) -> Job:
        folder, makes, resources = Path(values["folder"]), tuple(map(Path, values["makes"])), Resources(**values["resources"])
        return cls(values["key"], values["module"], tuple(values["args"]), tuple(values["needs"]), makes, folder, resources)


@dataclass(frozen=True)
class Batch:
    """Jobs of one sbatch call: `keys` by index in the array; a single job has no array. `logs` is the prefix of the batch
    scripts' log names. `id` is SLURM's, None until sbatch has answered."""

    keys: dict[int, str]
    dependency: str | None = None
    logs: str = ""
    id: str | None = None

    @property
    def single(self) -> bool:
        return len(self.keys) == 1

    @property
    def kind(self) -> str:
        return next(iter(self.keys.values())).split(":")[0]

    def ids(self) -> dict[str, str]:
        """Return SLURM's id of each job, by key; 123_4 for a task of an array."""
        keys = {} if self.id is None else self.keys
        return {key: str(self.id) if self.single else f"{self.id}_{index}" for index, key in keys.items()}


@dataclass
class Submission:
    """Everything that one command submitted. `withdrawn`: SLURM refused part of it and the rest was cancelled."""

    path: Path
    user: str
    cwd: str
    max_restarts: int
    jobs: dict[str, Job]
    batches: list[Batch]
    request: dict[str, Any]
    cluster: dict[str, Any]
    withdrawn: bool = False

    @classmethod
    def read(cls, path: Path) -> Submission:
        """Read a submission's file. ValueError if it is damaged or of another version of this code."""
        try:
            values = json.loads(path.read_text())
            jobs = {key: Job.read(job) for key, job in values["jobs"].items()}
            batches = [Batch(**{**batch, "keys": {int(index): key for index, key in batch["keys"].items()}})
                       for batch in values["batches"]]  # fmt: skip
            return cls(path, **{**values, "jobs": jobs, "batches": batches})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            said = f"{path} is damaged or of another version ({error!r}); move it away, once its jobs are gone."
            raise ValueError(said) from None

    def save(self) -> None:
        from results.atomic import write_atomic  # which an old python of the host cannot import

        values = {name: value for name, value in asdict(self).items() if name != "path"}
        write_atomic(self.path, json.dumps(values, indent=1, default=str) + "\n")

    def job_name(self, entry: int) -> str:
        batch = self.batches[entry]
        what = self.jobs[batch.keys[min(batch.keys)]].name if batch.single else batch.kind
        return f"fox-{what.replace(' ', '-')}{self.mark(entry)}"

    def mark(self, entry: int) -> str:
        """Return the ending of the names and comments of a batch's jobs."""
        return f".{self.path.stem}.{entry}"

    def change(self, entry: int, **values: Any) -> None:
        """Replace values of a batch, also in the file."""
        self.batches[entry] = replace(self.batches[entry], **values)
        self.save()

    def job_ids(self) -> dict[str, str]:
        """Return SLURM's id of each job that was submitted, by key."""
        return {key: job_id for batch in self.batches for key, job_id in batch.ids().items()}

    def shell_log(self, key: str) -> Path | None:
        """Return the log of a job's batch script."""
        found = [Path(f"{batch.logs}{ids[key]}.log") for batch in self.batches if key in (ids := batch.ids())]
        return found[-1] if found else None


def read_submissions(folder: Path) -> list[Submission]:
    """Return all submissions in `folder`, oldest first. Raises ValueError for a damaged file."""
    return [Submission.read(path) for path in sorted(folder.glob("*.json"))]


def users(submissions: Iterable[Submission]) -> set[str]:
    """Return the other users who submitted, in a shared checkout."""
    return {submission.user for submission in submissions} - {client.me()}


def find(submission: Submission, entry: int, queue: dict[str, QueuedJob]) -> list[QueuedJob]:
    """Return the jobs that SLURM has for a batch, recognised by their comment or name."""
    mark = submission.mark(entry)
    return [job for job in queue.values() if job.comment.endswith(mark) or job.name.endswith(mark)]


def adopt(submissions: Iterable[Submission], queue: dict[str, QueuedJob], save: bool = False) -> set[str]:
    """Record jobs that sbatch made although its answer was lost; return the ids of surplus ones: of a batch that already has a
    job, or of a withdrawn submission. Use `save` only as the only submitter."""
    surplus: set[str] = set()
    for submission in submissions:
        before = list(submission.batches)
        for number, batch in enumerate(before):
            for job in sorted(find(submission, number, queue), key=lambda job: int(job.array)):
                known = submission.batches[number].id
                if known is None and batch.keys and not submission.withdrawn:
                    submission.batches[number] = replace(batch, id=job.array)
                elif job.active and (submission.withdrawn or job.array != known):
                    surplus.add(job.array)
        if save and submission.batches != before:
            submission.save()
    return surplus
