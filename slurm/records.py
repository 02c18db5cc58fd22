"""Submissions, read together with SLURM's own queue.

Every job carries its submission and batch in its comment and in its name, so that a job whose id was never written down is
known for what it is.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from slurm import client
from slurm.client import QueuedJob
from slurm.job import Job, Submission


def read_submissions(folder: Path) -> list[Submission]:
    """All submissions in `folder`, oldest first. ValueError for a damaged file."""
    return [Submission.read(path) for path in sorted(folder.glob("*.json"))]


def users(submissions: Iterable[Submission]) -> set[str]:
    """Others who submitted, in a shared checkout."""
    return {submission.user for submission in submissions} - {client.me()}


def find(submission: Submission, entry: int, queue: dict[str, QueuedJob]) -> list[QueuedJob]:
    """The jobs that SLURM has for a batch, by their comment or else by their name."""
    comment, mark = submission.comment(entry), submission.mark(entry)
    return [job for job in queue.values() if job.comment == comment or job.name.endswith(mark)]


def adopt(submissions: Iterable[Submission], queue: dict[str, QueuedJob], save: bool = False) -> set[str]:
    """Note the jobs that sbatch made while its answer was lost; return the ids of those that are one too many: of a batch that
    has a job, or of a submission that was withdrawn. `save` it only as the only submitter."""
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


def active_jobs(submissions: Iterable[Submission], queue: dict[str, QueuedJob]) -> dict[str, tuple[str, Job]]:
    """Jobs that are queued or running: key -> (SLURM's id, job)."""
    return {
        key: (job_id, submission.jobs[key])
        for submission in submissions
        for key, job_id in submission.job_ids().items()
        if job_id in queue and queue[job_id].active
    }


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
