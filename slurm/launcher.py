"""What a job does, in each of its tasks: take SLURM's variables for those of torchrun, then be `python -m MODULE ARGS`.

The module runs in this very process, so that SLURM's signals reach it directly: trainings and evaluations save upon SIGUSR2 and
SIGTERM and leave with exit code 75, which the batch script turns into a requeue (slurm/epilogue.py).
"""

import json
import os
import runpy
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from slurm import client, journal
from slurm.epilogue import GIVEN_UP, REQUEUE


@dataclass(frozen=True)
class Task:
    """The callable that submitit pickles: one node of a submission's graph."""

    record: str
    key: str

    def __call__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, _leave)
        os.environ.update(torchrun_variables())
        record = json.loads(Path(self.record).read_text())
        node = record["nodes"][self.key]
        rank = int(os.environ.get("SLURM_PROCID", 0))
        _redirect(Path(node["log"]), rank)
        if rank == 0:
            _note_start(node, record["max_restarts"])
        sys.argv = [node["module"], *node["args"]]
        try:
            runpy.run_module(node["module"], run_name="__main__", alter_sys=True)
        except SystemExit as leave:
            sys.stdout.flush()
            if leave.code not in (0, None):
                raise

    def checkpoint(self) -> Any:
        """For a signal that comes before __call__: submitit then requeues the job as it is."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def torchrun_variables() -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT of this task; nothing for a job of one task."""
    size = int(os.environ.get("SLURM_NTASKS", 1))
    if size == 1:
        return {}
    from submitit.slurm.slurm import SlurmJobEnvironment

    return {
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "MASTER_ADDR": SlurmJobEnvironment().hostnames[0],
        "MASTER_PORT": str(20000 + int(os.environ["SLURM_JOB_ID"]) % 20000),
    }


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(REQUEUE)


def _redirect(log: Path, rank: int) -> None:
    """Send this task's output to the run folder."""
    log = log if rank == 0 else log.with_suffix(f".rank{rank}{log.suffix}")
    log.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    node = os.environ.get("SLURMD_NODENAME", "?")
    print(f"--- job {client.own_job_id()} on {node}, restart {restart}", file=sys.stderr, flush=True)


def _note_start(node: dict[str, Any], max_restarts: int) -> None:
    """Write the start down; leave if earlier ones were cut off (their epilogue never ran) too often without progress."""
    job, journal_file = client.own_job_id(), Path(node["journal"])
    mark = journal.progress_mark(Path(node["folder"]))
    fruitless = journal.fruitless_starts(journal.read(journal_file), job, mark)
    if fruitless > max_restarts:
        print(f"error: {fruitless} starts without progress; given up", file=sys.stderr)
        sys.exit(GIVEN_UP)
    journal.append(journal_file, "start", job=job, mark=mark, node=os.environ.get("SLURMD_NODENAME", "?"))
