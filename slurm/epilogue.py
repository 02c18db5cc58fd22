"""The end of every batch script: `python -m slurm.epilogue RECORD ENTRY EXIT_CODE` decides whether the job starts again, and
ends with the job's exit code.

By the rule of experiments/restarts.py, counting also starts that never got as far as the task: a broken container or a failing
`setup`. What SLURM itself has ended is final: a cancelled job must not come back. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import restarts
from slurm import client

ALIVE = ("RUNNING", "TIMEOUT")
CRASHED, LATE = 1, 124
NEVER_BEGAN = "the task never began"


@dataclass(frozen=True)
class Job:
    """The job that this process belongs to, as its submission describes it. `restart`: SLURM's own count of restarts."""

    id: str
    restart: int
    task: dict[str, Any]
    logs: str
    max_restarts: int
    withdrawn: bool

    @classmethod
    def own(cls, record: Path, entry: int) -> Job:
        values = json.loads(record.read_text())
        described = values["jobs"][entry]
        key = described["keys"][os.environ["SLURM_ARRAY_TASK_ID"] if described["array"] else "0"]
        return cls(
            id=client.own_job_id(),
            restart=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
            task=values["tasks"][key],
            logs=described["logs"],
            max_restarts=values["max_restarts"],
            withdrawn=values["withdrawn"],
        )

    @property
    def folder(self) -> Path:
        return Path(self.task["folder"])

    @property
    def journal(self) -> Path:
        return Path(self.task["journal"])

    @property
    def shell_log(self) -> Path:
        return Path(f"{self.logs}{self.id}.log")


def decide(code: int, state: str, fruitless: int, max_restarts: int, begun: bool = True) -> tuple[str, str]:
    """(action, why) after a job in SLURM's `state` has ended with `code`, its `fruitless` latest starts without progress."""
    if code != restarts.FINISHED and state not in ALIVE:
        return "ended", f"SLURM says {state.lower()}"
    # Where the task has not begun, the code is not the task's: srun, a container or a shell may mean anything by it.
    meant = code if begun or code in (restarts.FINISHED, restarts.REQUEUE) else CRASHED
    action, why = restarts.decide(meant, fruitless, max_restarts)
    said = "did not leave in time" if code == LATE else restarts.exit_reason(code)
    return action, why.replace(restarts.exit_reason(meant), said)


def fruitless_starts(job: Job, mark: str) -> int:
    """How many of the job's latest starts, in a row, have not got beyond `mark`, or not even as far as the task."""
    events = [{**event, "mark": mark} if event.get("mark") == NEVER_BEGAN else event for event in restarts.read(job.journal)]
    return restarts.fruitless_starts(events, job.id, mark)


def note_start(job: Job, mark: str) -> None:
    node = os.environ.get("SLURMD_NODENAME", "?")
    restarts.append(job.journal, "start", job=job.id, restart=job.restart, mark=mark, node=node)


def ended(job: Job, code: int, state: str) -> tuple[str, str]:
    """Note a job's end in its journal and return what becomes of it: (action, why)."""
    starts = [event for event in restarts.read(job.journal) if event["event"] == "start" and event["job"] == job.id]
    begun = any(start.get("restart") == job.restart for start in starts)
    if not begun:
        note_start(job, NEVER_BEGAN)
    mark = restarts.progress_mark(job.folder)
    action, reason = decide(code, state, fruitless_starts(job, mark), job.max_restarts, begun)
    if action == "failed" or (action == "again" and not begun):
        words = restarts.last_words(Path(job.task["log"]) if begun else job.shell_log)
        reason = ": ".join(part for part in (reason, "" if begun else NEVER_BEGAN, words) if part)
    # Written before the job is started again, which kills this very script.
    restarts.append(job.journal, "end", job=job.id, restart=job.restart, mark=mark, code=code, action=action, reason=reason)
    return action, reason


def main() -> int:
    job = Job.own(Path(sys.argv[1]), int(sys.argv[2]))
    code = int(sys.argv[3])
    if code == restarts.FINISHED and not all(Path(path).exists() for path in job.task["makes"]):
        code = CRASHED  # srun ends with 0 when it gives up a step of which a node was lost
    state = "RUNNING" if code == restarts.FINISHED else client.state(job.id)
    action, reason = ended(job, code, state)
    print(f"exit code {code}: {action}{', ' + reason if reason else ''}", file=sys.stderr)
    if action == "again":
        complaint = client.requeue(job.id)
        if complaint is not None:
            restarts.append(job.journal, "end", job=job.id, restart=job.restart, code=code, action="failed", reason=complaint)
            print(f"error: not started again: {complaint}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
