"""The end of every batch script: `python -m slurm.epilogue RECORD ENTRY EXIT_CODE` decides whether the job is requeued, and
exits with the job's exit code.

It follows the rule of experiments/restarts.py, and also counts starts that never reached the task: a broken container or a
failing `setup`. A job that SLURM itself ended is not requeued: a cancelled job must not come back. Standard library only."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments import restarts
from slurm import client
from slurm.job import Job, Submission

ALIVE = ("RUNNING", "TIMEOUT", "PREEMPTED")
"""States in which a job can be requeued: if preempted, even in a partition that cancels, until SLURM kills it (KillWait)."""
CRASHED, LATE = 1, 124
NEVER_BEGAN = "the task never began"


@dataclass(frozen=True)
class Start:
    """A start of a job, seen from inside it. `restart`: SLURM's own count of restarts. `withdrawn`: nobody waits for the job,
    because its submission was withdrawn, or sbatch was called again before it answered."""

    id: str
    restart: int
    job: Job
    shell_log: Path
    max_restarts: int
    withdrawn: bool

    @classmethod
    def own(cls, record: Path, entry: int) -> Start:
        """Find the start that this process belongs to, in the record of its submission."""
        submission = Submission.read(record)
        batch = submission.batches[entry]
        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        job_id = f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]  # of one task rather than of all
        job = submission.jobs[batch.keys[0 if batch.single else int(task or "")]]
        restart, log = int(os.environ.get("SLURM_RESTART_COUNT") or 0), Path(f"{batch.logs}{job_id}.log")
        surplus = batch.id not in (None, job_id.split("_")[0])
        return cls(job_id, restart, job, log, submission.max_restarts, submission.withdrawn or surplus)


def decide(code: int, state: str, fruitless: int, max_restarts: int, begun: bool = True) -> tuple[str, str]:
    """Return (action, reason) for a job in SLURM's `state` that ended with `code` after `fruitless` starts without progress."""
    if code != restarts.FINISHED and state not in ALIVE:
        return "ended", f"SLURM says {state.lower()}"
    # If the task has not begun, the code comes from srun, a container or a shell, and may mean anything.
    meant = code if begun or code in (restarts.FINISHED, restarts.REQUEUE) else CRASHED
    action, why = restarts.decide(meant, fruitless, max_restarts)
    said = "did not exit in time" if code == LATE else restarts.exit_reason(code)
    return action, why.replace(restarts.exit_reason(meant), said)


def fruitless_starts(start: Start, mark: str) -> int:
    """Count the job's latest consecutive starts that did not get beyond `mark`, or did not even reach the task."""
    events = restarts.read(start.job.journal)
    events = [{**event, "mark": mark} if event.get("mark") == NEVER_BEGAN else event for event in events]
    return restarts.fruitless_starts(events, start.id, mark)


def note(start: Start, event: str, mark: str, **values: object) -> None:
    restarts.append(start.job.journal, event, job=start.id, restart=start.restart, mark=mark, **values)


def note_start(start: Start, mark: str) -> None:
    note(start, "start", mark, node=os.environ.get("SLURMD_NODENAME", "?"))


def ended(start: Start, code: int, state: str) -> tuple[str, str]:
    """Record a job's end in its journal and return (action, reason)."""
    this = {"event": "start", "job": start.id, "restart": start.restart}
    begun = any(this.items() <= event.items() for event in restarts.read(start.job.journal))
    if not begun:
        note_start(start, NEVER_BEGAN)
    mark = restarts.progress_mark(start.job.folder)
    action, reason = decide(code, state, fruitless_starts(start, mark), start.max_restarts, begun)
    if code == restarts.BROKEN_NODE and begun:
        reason += seen(start)
    elif action == "failed" or (action == "again" and not begun):
        words = restarts.last_words(start.job.log if begun else start.shell_log)
        reason = ": ".join(filter(None, (reason, "" if begun else NEVER_BEGAN, words)))
    # Written before the job is requeued, which kills this script.
    note(start, "end", mark, code=code, action=action, reason=reason)
    return action, reason


def seen(start: Start) -> str:
    """Return the words of the newest log in which a process reports its node as broken."""
    logs = sorted(start.job.log.parent.glob(f"{start.job.log.stem}*.log"), key=lambda log: log.stat().st_mtime, reverse=True)
    words = (restarts.last_words(log).partition("error: this node: ")[2] for log in logs)
    return next((f": {word}" for word in words if word), "")


def broken_node(start: Start) -> str | None:
    """Return the node where a crash began: the first that srun names, or else the job's only node."""
    text = ""
    with contextlib.suppress(OSError):
        text = start.shell_log.read_text(errors="replace")
    named = re.search(r"^srun: error: ([\w.-]+): tasks? ", text.rpartition("--- job ")[2], re.M)
    only = os.environ.get("SLURMD_NODENAME") if start.job.resources.nodes == 1 else None
    return named[1] if named else only


def main() -> int:
    start, code = Start.own(Path(sys.argv[1]), int(sys.argv[2])), int(sys.argv[3])
    if code == restarts.FINISHED and not all(path.exists() for path in start.job.makes):
        code = CRASHED  # srun exits with 0 when it abandons a step that lost a node
    state = "RUNNING" if code == restarts.FINISHED else client.state(start.id)
    action, reason = ended(start, code, state)
    print(f"exit code {code}: {action}{', ' + reason if reason else ''}", file=sys.stderr)
    if action == "again":
        node = broken_node(start) if code not in (restarts.REQUEUE, LATE) and state != "PREEMPTED" else None
        nodes = client.without(start.id, node, start.job.resources.nodes) if node is not None else None
        complaint = client.requeue(start.id)  # from here on SLURM ends this script within seconds (KillWait)
        if complaint is None and nodes is not None and client.avoid(start.id, nodes):
            restarts.append(start.job.journal, "excluded", job=start.id, node=node)
            print(f"it crashed on {node}, which its next starts avoid", file=sys.stderr)
        if complaint is not None:
            note(start, "end", restarts.progress_mark(start.job.folder), code=code, action="failed", reason=complaint)
            print(f"error: not requeued: {complaint}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
