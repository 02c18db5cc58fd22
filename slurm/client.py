"""SLURM's own commands: submit, query, requeue, cancel. Standard library only: on clusters with containers a job's epilogue
runs on the host's python3.

squeue asks the controller, which knows jobs for minutes after their end; sacct asks the accounting database, if there is one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass

COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel")
ENDED = {
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
    "REVOKED",
}  # fmt: skip
HELD_STATES = {"REQUEUE_HOLD", "SPECIAL_EXIT"}
HELD_REASONS = {"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"}
NEVER = re.compile(r"Partition(TimeLimit|NodeLimit|Config)|BadConstraints|Invalid(Account|QOS)|\w+PerJob(Limit)?")
"""Reasons for which a job, as it was submitted, waits for ever."""
SOUND = {"idle", "mixed", "allocated", "completing"}
KEPT = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"}
"""Variables that select the SLURM cluster and authenticate the user."""
WAIT_S = 600
"""Seconds that a job's epilogue waits for a controller that is down."""
_UNREACHABLE = (
    "Unable to contact slurm controller", "Connection refused", "Connection reset", "timed out", "Zero Bytes",
    "Communication connection failure", "Transport endpoint", "Resource temporarily unavailable", "temporarily unable",
    "Unexpected message received", "in standby mode", "credential",
)  # fmt: skip
_FOR_GOOD = ("nvalid", "not available", "nrecognized", "denied", "not permitted", "no such file")
_LIMITS = ("SubmitJob", "MaxSubmit", "job submit limit", "MaxJobCount")
_LASTING = re.compile(r"\b(?:QOS|Assoc)(?!\w*Submit)\w+")
"""Limits on the size of one job (with DenyOnLimit): time, processors, nodes."""
_FORGOTTEN = ("Job dependency problem",)
_NO_ARRAYS = ("Invalid job array specification", "Job array index too large")


class ForNow(Exception):
    """SLURM does not answer or is too busy: it may accept the same job later."""


class TooMany(ForNow):
    """A limit on submitted jobs: fewer may be accepted now, the rest later."""


class Unclear(ForNow):
    """An error message that is not known here."""


class NoArrays(Exception):
    """This cluster takes no job arrays, or none of this size."""


class Forgotten(Exception):
    """SLURM does not know a job that this one is to wait for: it has ended a while ago (MinJobAge)."""


class Refused(Exception):
    """A refusal for good: the request itself is wrong."""


@dataclass(frozen=True)
class QueuedJob:
    """A job as the controller sees it; `id` is 123, or 123_4 for a task of an array."""

    id: str
    state: str
    reason: str
    nodes: str
    user: str
    name: str
    comment: str

    @property
    def active(self) -> bool:
        return self.state not in ENDED

    @property
    def held(self) -> bool:
        return self.state in HELD_STATES or (self.state == "PENDING" and (self.reason in HELD_REASONS or "held" in self.reason))

    @property
    def array(self) -> str:
        """The id of the whole array, or of the single job."""
        return self.id.split("_")[0]


def require_slurm() -> None:
    """Raise ValueError if SLURM's commands are missing."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        remedy = "run this on the cluster's login node, or look at the plan with --dry-run"
        raise ValueError(f"{', '.join(missing)} not found: SLURM's commands are needed; {remedy}.")


def sbatch(script: str) -> str:
    """Submit a script and return SLURM's id. Raises ForNow, TooMany, Unclear, NoArrays, Forgotten or Refused with
    SLURM's message."""
    result = _run("sbatch", "--parsable", script)
    found = re.findall(r"^(\d+)(?:;\S+)?$", result.stdout, re.M)  # a site's greeting may precede it
    if result.returncode == 0 and found:
        return found[-1]
    said = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    errors = [line for line in said if line.startswith("sbatch: error:")] or said[-1:]
    text = "; ".join(line.replace("sbatch: error: ", "").rstrip(".") for line in errors)
    text = text or f"exit code {result.returncode}, {last_line(result.stdout)!r}"
    if _LASTING.search(text):
        raise Refused(text)
    for words, error in (
        (_NO_ARRAYS, NoArrays), (_LIMITS, TooMany), (_UNREACHABLE, ForNow), (_FORGOTTEN, Forgotten), (_FOR_GOOD, Refused),
    ):  # fmt: skip
        if any(word in text for word in words):
            raise error(text)
    raise Unclear(text)


def queue(users: Iterable[str] = ()) -> dict[str, QueuedJob]:
    """Return all jobs of this user and of `users` that the controller knows, also ended ones, by id. ValueError: no answer."""
    whose = ["--me"] if not users else ["--user", ",".join(sorted({*users, me()}))]
    result = _run("squeue", *whose, "--noheader", "--array", "--states=all", "--format=%i|%T|%r|%N|%u|%j|%k")
    if result.returncode:
        raise ValueError(f"SLURM does not answer: {last_line(result.stderr)}; try again when `squeue` works.")
    jobs = (QueuedJob(*line.split("|", 6)) for line in result.stdout.splitlines() if line.count("|") >= 6)
    return {job.id: job for job in jobs}


def unseen(users: Iterable[str], queue: dict[str, QueuedJob]) -> set[str]:
    """Return those of `users` whose jobs SLURM does not show to this user (PrivateData=jobs)."""
    rest = set(users) - {job.user for job in queue.values()} if os.geteuid() else set()
    said = _run("scontrol", "show", "config").stdout if rest else ""
    return rest if re.search(r"^PrivateData\s*=.*\bjobs\b", said, re.M) else set()


def without_grace(partitions: set[str | None]) -> list[str]:
    """Return those `partitions` (None: the default one) that cancel preempted jobs, which have only KillWait to save."""
    names = {name for some in partitions for name in (some or "").split(",")}  # "": the default one
    found = [_told(line) for line in _run("scontrol", "show", "partition", "--oneliner").stdout.splitlines()]
    killed = [part for part in found if part.get("PreemptMode") == "CANCEL" and part.get("GraceTime") == "0"]
    ours = [part for part in killed if part["PartitionName"] in names or ("" in names and part.get("Default") == "YES")]
    return [part["PartitionName"] for part in ours]


def accounted(job_ids: Iterable[str]) -> dict[str, str]:
    """Return the states of jobs that the controller has forgotten, as far as the accounting database has them."""
    wanted = sorted(job_ids)
    if not wanted or shutil.which("sacct") is None:
        return {}
    result = _run("sacct", "-n", "--parsable2", "--allocations", "--array", "--format=JobID,State", "--jobs", ",".join(wanted))
    lines = (line.split("|", 1) for line in result.stdout.splitlines() if result.returncode == 0 and "|" in line)
    return {job: state.split()[0] for job, state in lines if state.split()}


def me() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def state(job_id: str) -> str:
    """Return a job's state; waits for a controller that is down. PREEMPTED also while that cancels it; UNKNOWN: no answer."""
    said = _shown(job_id)
    if said.get("StartTime", "") <= said.get("PreemptTime", "None") < "None":  # dates, of this start
        return "PREEMPTED"
    return said.get("JobState", "UNKNOWN")


def requeue(job_id: str) -> str | None:
    """Requeue a job; waits for a controller that is down. Returns SLURM's error message, if any."""
    result = _patiently(WAIT_S, "scontrol", "requeue", job_id)
    return last_line(result.stderr) or f"exit code {result.returncode}" if result.returncode else None


def without(job_id: str, node: str, needed: int) -> str | None:
    """Return the nodes that a job is to avoid at its next start: `node`, and those it avoids already. None if this leaves
    fewer than `needed` nodes of the same make in its partition."""
    before = _shown(job_id).get("ExcNodeList", "(null)")
    excluded = {node, *(() if before == "(null)" else _run("scontrol", "show", "hostnames", before).stdout.split())}
    partition = os.environ.get("SLURM_JOB_PARTITION", "")
    listed = _run("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N %T %c %m %G").stdout
    nodes = {name: (state, make) for name, state, make in (line.split(None, 2) for line in listed.splitlines())}
    alike = {name for name, (state, make) in nodes.items() if state in SOUND and node in nodes and make == nodes[node][1]}
    return ",".join(sorted(excluded)) if len(alike - excluded) >= needed else None


def avoid(job_id: str, nodes: str) -> bool:
    """Exclude nodes from a job's next start; SLURM accepts that only after the job was requeued."""
    return not _run("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={nodes}").returncode


def _shown(job_id: str) -> dict[str, str]:
    return _told(_patiently(WAIT_S, "scontrol", "show", "job", "--oneliner", job_id).stdout)


def _told(text: str) -> dict[str, str]:
    """Parse the NAME=VALUE pairs in one line of scontrol's output."""
    return dict(word.partition("=")[::2] for word in text.split())


def cancel(job_ids: Iterable[str]) -> None:
    """Cancel jobs; those that have ended are ignored. Raises ValueError with SLURM's message if that fails."""
    wanted = together(job_ids)
    if wanted:
        result = _patiently(30, "scancel", *wanted)
        if result.returncode and "Invalid job id" not in result.stderr:
            raise ValueError(f"scancel {' '.join(wanted)} failed: {last_line(result.stderr)}")


def together(job_ids: Iterable[str]) -> list[str]:
    """Return the ids with the tasks of each array merged, such as 123_[0-6,9]: one request instead of one per task."""
    wanted, tasks = set(job_ids), dict[str, list[int]]()
    for array, _, index in (job.partition("_") for job in wanted if "_" in job):
        tasks.setdefault(array, []).append(int(index))
    whole = {job for job in wanted if "_" not in job}
    return sorted(whole | {f"{array}_[{spans(indices)}]" for array, indices in tasks.items() if array not in whole})


def spans(indices: Iterable[int]) -> str:
    """Print indices as 0-6, or 3,7-9."""
    found: list[list[int]] = []
    for index in sorted(indices):
        if found and found[-1][1] == index - 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()


def _patiently(patience_s: float, *command: str) -> subprocess.CompletedProcess[str]:
    end = time.monotonic() + patience_s
    while True:
        result = _run(*command)
        if not result.returncode or time.monotonic() > end or not any(text in result.stderr for text in _UNREACHABLE):
            return result
        time.sleep(2)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    # SBATCH_PARTITION and the like override a script's options; a shell inside a job has SLURM_ variables of that job.
    foreign = ("SBATCH_", "SQUEUE_", "SCANCEL_", "SACCT_", "SLURM_")
    environment = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(foreign)}
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    except (subprocess.TimeoutExpired, OSError) as error:
        said = f": {error.strerror}" if isinstance(error, OSError) else " timed out"
        return subprocess.CompletedProcess(command, 1, "", command[0] + said)
