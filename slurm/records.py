"""What was submitted: runs/SCALE/submissions/ID.json, one file per submission, read together with SLURM's own queue.

The file is written before the first sbatch and again after each, and every job carries its submission and group in its comment,
so that a job is known for what it is even if the submitting process died between sbatch and the file.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from results.atomic import write_atomic
from slurm.client import QueuedJob
from slurm.graph import Group

COMMENT = "fox"


@dataclass(frozen=True)
class Submission:
    """One submission: `values` is what its file holds."""

    path: Path
    values: dict[str, Any]

    @property
    def id(self) -> str:
        return self.path.stem

    def comment(self, group: int) -> str:
        return f"{COMMENT}:{self.id}:{group}"

    def save(self) -> None:
        write_atomic(self.path, json.dumps(self.values, indent=1) + "\n")

    def job_ids(self) -> dict[str, str]:
        """SLURM's id of each node that was submitted, by key."""
        ids = {}
        for group in self.values["groups"]:
            for index, key in enumerate(group["keys"]):
                if group["job_id"] is not None:
                    ids[key] = f"{group['job_id']}_{index}" if len(group["keys"]) > 1 else group["job_id"]
        return ids


def new_submission(folder: Path, groups: list[Group], **values: Any) -> Submission:
    """A submission of `groups`, not yet saved. Its id is the date and a random suffix."""
    nodes = {
        node.key: {
            "kind": node.kind,
            "name": node.job.name,
            "module": node.job.module,
            "args": node.job.args,
            "needs": node.needs,
            "makes": [str(path) for path in node.job.makes],
            "folder": str(node.folder),
            "log": str(node.log),
            "journal": str(node.journal),
        }
        for group in groups
        for node in group.nodes
    }
    described = [{"kind": group.kind, "keys": [node.key for node in group.nodes], "job_id": None} for group in groups]
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    # Through JSON once, so that a fresh submission and one read from its file are alike.
    return Submission(folder / f"{name}.json", json.loads(json.dumps({**values, "groups": described, "nodes": nodes})))


def read_submissions(folder: Path, queue: dict[str, QueuedJob]) -> list[Submission]:
    """All submissions in `folder`, oldest first; ids that a killed submission never wrote down are taken from the queue."""
    by_comment = {job.comment: job.id.split("_")[0] for job in queue.values() if job.comment.startswith(f"{COMMENT}:")}
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            submission = Submission(path, json.loads(path.read_text()))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is damaged ({error}); move it away, once its jobs are gone.") from None
        for index, group in enumerate(submission.values["groups"]):
            if group["job_id"] is None:
                group["job_id"] = by_comment.get(submission.comment(index))
        found.append(submission)
    return found


def active_jobs(submissions: list[Submission], queue: dict[str, QueuedJob]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Nodes whose jobs are queued or running: key -> (job id, node)."""
    found = {}
    for submission in submissions:
        for key, job_id in submission.job_ids().items():
            if job_id in queue and queue[job_id].active:
                found[key] = (job_id, submission.values["nodes"][key])
    return found


@contextmanager
def only_submitter(folder: Path, console: Console) -> Iterator[None]:
    """One process at a time submits into `folder`; a second one waits and then sees the first one's jobs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
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
