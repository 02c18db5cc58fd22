"""SLURM's own commands, where submitit has none: what is queued, requeueing, cancelling. Standard library only.

submitit learns states from sacct alone, which needs an accounting database, lags behind the controller and calls a job done
whose node failed although SLURM has queued it again; squeue asks the controller. And submitit requeues from its signal
handler; here a job is requeued by its batch script, after the training has saved and left (slurm/epilogue.py).
"""

import os
import shutil
import subprocess
import time
from dataclasses import dataclass

COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel")
ENDED = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
    "REVOKED",
}  # fmt: skip
_UNREACHABLE = ("Unable to contact slurm controller", "Connection refused", "timed out", "Socket timed out", "Zero Bytes")


@dataclass(frozen=True)
class QueuedJob:
    """A job as the controller sees it; `id` is 123, or 123_4 for a task of an array."""

    id: str
    state: str
    reason: str
    nodes: str
    comment: str

    @property
    def active(self) -> bool:
        return self.state not in ENDED


def require_slurm() -> None:
    """ValueError where SLURM's commands are missing."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} not found: --launcher slurm needs SLURM's commands; run this on the cluster's login node, "
            "or look at the plan with --dry-run."
        )


def queue() -> dict[str, QueuedJob]:
    """All jobs of this user that the controller remembers, finished ones included, by id. ValueError if it does not answer."""
    result = _run("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%N|%k")
    if result.returncode:
        raise ValueError(f"SLURM does not answer: {last_line(result.stderr)}; try again when `squeue` works.")
    jobs = (QueuedJob(*line.split("|", 4)) for line in result.stdout.splitlines() if line.count("|") >= 4)
    return {job.id: job for job in jobs}


def own_job_id() -> str:
    """Inside a job: its id, in the form that means one task of an array rather than all of it."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]


def state(job_id: str, patience_s: float = 600) -> str:
    """State of one job; waits for a controller that is down. UNKNOWN where it has none to tell."""
    result = _patiently(patience_s, "squeue", "--noheader", "--array", "--states=all", "--jobs", job_id, "--format=%T")
    return result.stdout.split()[0] if result.returncode == 0 and result.stdout.split() else "UNKNOWN"


def requeue(job_id: str, patience_s: float = 600) -> str | None:
    """Have a job start again from its beginning; waits for a controller that is down. Returns SLURM's complaint, if any."""
    result = _patiently(patience_s, "scontrol", "requeue", job_id)
    return last_line(result.stderr) or f"exit code {result.returncode}" if result.returncode else None


def cancel(job_ids: list[str]) -> None:
    """Cancel jobs; those that have ended meanwhile are left alone. ValueError with SLURM's message if that fails."""
    if job_ids:
        result = _patiently(30, "scancel", *job_ids)
        if result.returncode and "Invalid job id" not in result.stderr:
            raise ValueError(f"scancel {' '.join(job_ids)} failed: {last_line(result.stderr)}")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _patiently(patience_s: float, *command: str) -> subprocess.CompletedProcess[str]:
    end = time.monotonic() + patience_s
    while True:
        result = _run(*command)
        if not result.returncode or time.monotonic() > end or not any(text in result.stderr for text in _UNREACHABLE):
            return result
        time.sleep(2)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} timed out")
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]}: {error.strerror}")
