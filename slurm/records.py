"""What was submitted: runs/SCALE/plans/submissions/ID.json, one file per submission, read together with SLURM's own queue.

It holds the tasks, which jobs read, and one entry per sbatch, written before sbatch is called. Every job carries its submission
and entry in its comment and in its name, so that a job whose id was never written down is known for what it is.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from results.atomic import write_atomic
from slurm import client
from slurm.client import QueuedJob

if TYPE_CHECKING:  # its imports take longer than all that `status` does
    from slurm.graph import Batch, Node

COMMENT = "fox"


@dataclass(frozen=True)
class Submission:
    """One submission: `values` is what its file holds.

    user, cwd, request, cluster, max_restarts; `tasks` by key; `jobs`: one entry per sbatch with keys by array index, its id
    and how its shells' logs begin. `withdrawn`: SLURM refused part of it and the rest was cancelled.
    """

    path: Path
    values: dict[str, Any]

    @property
    def id(self) -> str:
        return self.path.stem

    def comment(self, entry: int) -> str:
        return f"{COMMENT}:{self.id}:{entry}"

    def job_name(self, entry: int, what: str) -> str:
        return f"{what}.{self.id}.{entry}"

    def save(self) -> None:
        write_atomic(self.path, json.dumps(self.values, indent=1) + "\n")

    def add(self, batch: Batch, logs: str, save: bool = True) -> int:
        """A further entry, for a batch that is going to be submitted; returns its number."""
        keys = {str(index): node.key for index, node in batch.nodes.items()}
        self.values["jobs"].append({"kind": batch.kind, "keys": keys, "array": not batch.single, "job_id": None, "logs": logs})
        if save:
            self.save()
        return len(self.values["jobs"]) - 1

    def drop(self, entry: int) -> None:
        """Forget an entry that SLURM refused; its tasks go in others."""
        self.values["jobs"][entry]["keys"] = {}
        self.save()

    def job_ids(self) -> dict[str, str]:
        """SLURM's id of each task that was submitted, by key."""
        found = {}
        for entry in self.values["jobs"]:
            for index, key in entry["keys"].items():
                if entry["job_id"] is not None:
                    found[key] = f"{entry['job_id']}_{index}" if entry["array"] else entry["job_id"]
        return found

    def shell_log(self, key: str, job: str) -> Path | None:
        """What the batch script of a job printed."""
        for entry in self.values["jobs"]:
            if key in entry["keys"].values() and entry["job_id"] == job.split("_")[0]:
                return Path(f"{entry['logs']}{job}.log")
        return None


def new_submission(folder: Path, nodes: Iterable[Node], **values: Any) -> Submission:
    """A submission of `nodes`, not yet saved. Its id is the date and a random suffix."""
    tasks = {node.key: described(node) for node in nodes}
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    whole = {"user": client.me(), "withdrawn": False, **values, "jobs": [], "tasks": tasks}
    # Through JSON once, so that a fresh submission and one read from its file are alike.
    return Submission(folder / f"{name}.json", json.loads(json.dumps(whole)))


def described(node: Node) -> dict[str, Any]:
    """All that a job, and whoever looks at it later, must know of its task."""
    task = node.task
    return {
        "kind": task.kind,
        "name": task.name,
        "module": task.module,
        "args": task.args,
        "needs": task.needs,
        "makes": [str(path) for path in task.makes],
        "folder": str(task.folder),
        "log": str(task.log),
        "journal": str(task.journal),
    }


def read_submissions(folder: Path) -> list[Submission]:
    """All submissions in `folder`, oldest first. ValueError for a damaged file."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(Submission(path, json.loads(path.read_text())))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is damaged ({error}); move it away, once its jobs are gone.") from None
    return found


def users(submissions: Iterable[Submission]) -> set[str]:
    """Who submitted: in a shared checkout not only oneself."""
    return {submission.values["user"] for submission in submissions} - {client.me()}


def find(submission: Submission, entry: int, queue: dict[str, QueuedJob]) -> list[QueuedJob]:
    """The jobs that SLURM has for an entry, by their comment or else by their name."""
    comment, name = submission.comment(entry), f".{submission.id}.{entry}"
    return [job for job in queue.values() if job.comment == comment or job.name.endswith(name)]


def adopt(submissions: Iterable[Submission], queue: dict[str, QueuedJob], save: bool = False) -> set[str]:
    """Note the jobs that sbatch made while its answer was lost; returns the ids of those that are one too many: of an entry
    that has a job, or of a submission that was withdrawn. `save` it only as the only submitter."""
    surplus: set[str] = set()
    for submission in submissions:
        adopted = False
        for number, entry in enumerate(submission.values["jobs"]):
            for job in sorted(find(submission, number, queue), key=lambda job: int(job.array)):
                if entry["job_id"] is None and entry["keys"] and not submission.values["withdrawn"]:
                    entry["job_id"], adopted = job.array, True
                elif job.active and (submission.values["withdrawn"] or job.array != entry["job_id"]):
                    surplus.add(job.array)
        if adopted and save:
            submission.save()
    return surplus


def active_tasks(submissions: Iterable[Submission], queue: dict[str, QueuedJob]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Tasks whose jobs are queued or running: key -> (job id, task)."""
    found = {}
    for submission in submissions:
        for key, job_id in submission.job_ids().items():
            if job_id in queue and queue[job_id].active:
                found[key] = (job_id, submission.values["tasks"][key])
    return found


@contextmanager
def only_submitter(folder: Path, console: Console) -> Iterator[None]:
    """One process at a time submits into `folder`; a second one waits and then sees the first one's jobs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)  # a colleague's, too, where the umask allows it
    except OSError as error:
        raise ValueError(f"cannot write {folder}: {error.strerror}. Choose another --runs-dir.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("another shell is submitting to the same runs; waiting for it ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
