"""A task of a plan as a function that submitit pickles, runs in every process of a job, and requeues.

The task itself is a process of its own, `python -m MODULE ARGS`. A job ends in one of these ways:

    USR2      before the time limit, or where preemption sends it: submitit calls `checkpoint`, which lets the task
              save, and requeues the job
    TERM      preemption, scancel: the task saves; SLURM ends the job, and starts it again if it preempted it
    a crash   the job requeues itself
    exit 2    a mistake in how it was called: it fails, and what needs it is cancelled

Whatever the way, a job that starts several times in a row without progress fails (experiments/restarts.py)."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from types import FrameType

from submitit import JobEnvironment
from submitit.helpers import DelayedSubmission, TorchDistributedEnvironment

from experiments import restarts
from experiments.task import Task

POLL_S = 0.2


@dataclass
class Attempt:
    """Runs `task` once, and returns if it is done. `save_s`: seconds that it has to save after USR2, before it is killed.
    Raises RuntimeError if the job is not to be started again."""

    task: Task
    save_s: float
    process: subprocess.Popen | None = field(default=None, init=False)
    told: bool = field(default=False, init=False)

    def __call__(self) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        job, task, rank = JobEnvironment(), self.task, JobEnvironment().global_rank
        if job.num_tasks > 1:
            TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        if rank == 0:
            self._begin(job.job_id)
        log = task.log.with_suffix(f".rank{rank}.log" if rank else ".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a") as out:
            restart, node = os.environ.get("SLURM_RESTART_COUNT", 0), os.environ.get("SLURMD_NODENAME", "?")
            print(f"--- job {job.job_id} on {node}, restart {restart}, {sys.executable}", file=out, flush=True)
            command = [sys.executable, "-m", task.module, *task.args]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        while self.process.poll() is None:
            time.sleep(POLL_S)
        code = self.process.returncode
        while code and (self.told or (rank and code == restarts.REQUEUE)):
            signal.pause()  # SLURM, or the job's first process, ends this one
        action, reason = restarts.note_end(task.journal, job.job_id, task.folder, code)
        if action == "again":
            subprocess.run(["scontrol", "requeue", job.job_id], check=True, timeout=60)
            sys.exit(restarts.REQUEUE)
        if action == "failed":
            raise RuntimeError(f"{task.name}: {reason or restarts.exit_reason(code)}: {restarts.last_words(log)}")

    def checkpoint(self) -> DelayedSubmission | None:
        """Let the task save and exit, and return what to start again; None if that would not help. submitit calls this in
        the job's first process."""
        if self.process is not None:
            self.process.send_signal(signal.SIGUSR2)
            try:
                code = self.process.wait(self.save_s)
            except subprocess.TimeoutExpired:
                self.process.kill()  # it goes on from its last checkpoint
                code = self.process.wait()
            task = self.task
            if restarts.note_end(task.journal, JobEnvironment().job_id, task.folder, code)[0] == "failed":
                return None
        return DelayedSubmission(Attempt(self.task, self.save_s))

    def _begin(self, job: str) -> None:
        """Record the start. Raises RuntimeError after too many without progress, which `checkpoint` may not have seen."""
        task, mark = self.task, restarts.progress_mark(self.task.folder)
        fruitless = restarts.fruitless_starts(restarts.read(task.journal), job, mark)
        if fruitless > restarts.MAX_RESTARTS:
            reason = f"given up after {fruitless} starts without progress"
            restarts.append(task.journal, "end", job=job, mark=mark, code=restarts.GIVEN_UP, action="failed", reason=reason)
            raise RuntimeError(f"{task.name}: {reason}")
        restarts.note_start(task.journal, job, task.folder)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.told = True
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
