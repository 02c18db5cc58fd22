"""The tasks of a plan as callables for submitit, so that a notebook can train, evaluate and draw with any of its executors
(SLURM, local, debug). slurm/clusters/README.md has an example."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import submitit
from rich.console import Console
from submitit.helpers import DelayedSubmission, TorchDistributedEnvironment

from experiments import restarts
from experiments.execute import fetch
from experiments.graph import tasks, write_draw_specs
from experiments.local import PROCESS_GROUP
from experiments.plan import make_plan, write_specs
from experiments.request import Request
from experiments.task import Task
from slurm.cluster import KINDS, UNNAMED
from slurm.snapshot import ROOT
from slurm.submit import whole_paths
from training.hardware import equal_bits

POLL_S = 0.2


@dataclass(frozen=True)
class Submittable(Task):
    """`python -m MODULE ARGS` as a function without arguments, which returns the task's name or raises RuntimeError.

    The task is a process of its own, so that signals reach submitit's handler: it calls `checkpoint`, which lets the task save
    and exit, and SLURM requeues it. A crash is retried by the rule of experiments/restarts.py; a training that has used up its
    --max-hours is not."""

    cwd: Path
    device: str
    pids: list[int] = field(default_factory=list)
    """Processes that were started here."""

    def __call__(self) -> str:
        started = f"submitit-{os.getpid()}-{time.time_ns()}"
        while True:
            restarts.note_start(self.journal, started, self.folder)
            code = self._run()
            action, reason = restarts.note_end(self.journal, started, self.folder, code)
            if action == "done":
                return self.name
            if action == "again" and code == restarts.REQUEUE and "--max-hours" in self.args:
                raise RuntimeError(f"{self.name}: {reason}: its --max-hours are used up; submit it again to resume")
            if action == "failed":
                words = filter(None, (self.name, reason, restarts.last_words(self.log)))
                raise RuntimeError(f"{': '.join(words)}; log: {self.log}")

    def checkpoint(self) -> DelayedSubmission:
        """Let the task save and exit. Called by submitit in a job's first process, before a time limit and at preemption."""
        with contextlib.suppress(IndexError, ProcessLookupError, ChildProcessError):  # it has not begun, or has ended
            os.kill(self.pids[-1], signal.SIGUSR2)
            os.waitid(os.P_PID, self.pids[-1], os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(replace(self, pids=[]))

    def _run(self) -> int:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", self.module, *self.args]
        with open(self.log, "a") as log:
            process = subprocess.Popen(
                command, cwd=self.cwd, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.pids.append(process.pid)
        try:
            # Nothing is reaped here, so that `checkpoint`, which may interrupt this anywhere, finds the process.
            while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                time.sleep(POLL_S)
        except BaseException:
            process.terminate()
            raise
        return process.wait()

    def _environment(self) -> dict[str, str]:
        if "SUBMITIT_EXECUTOR" in os.environ and submitit.JobEnvironment().num_tasks > 1:
            TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
            own = dict(os.environ)
        else:
            own = {name: value for name, value in os.environ.items() if name not in PROCESS_GROUP}
        own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), own.get("PYTHONPATH"))))
        return own | ({"OMP_NUM_THREADS": "1", **equal_bits(1, own)} if self.device == "cpu" else {})


def stages(request: Request, *, processes: int = 1, machine: str = UNNAMED) -> list[list[Submittable]]:
    """Return a request's missing tasks: corpora, trainings, evaluations, timings, figures. Tasks of one stage can run in
    parallel, once those of earlier stages have ended. All that they read, except corpora, is written and fetched now.

    `processes`: per training, the executor's tasks. `machine`: name of the machine of timings (slurm/clusters/README.md). If
    tasks run on another machine, use Execution(device="cuda"). Raises ValueError for what a plan refuses."""
    whole = whole_paths(request.settled() if request.execution.device == "auto" else request)
    plan = make_plan(whole, machine=machine)
    fetch(plan, Console(quiet=True))
    write_specs(plan)
    write_draw_specs(plan)
    made: defaultdict[str, list[Submittable]] = defaultdict(list)
    for task in tasks(plan, processes=processes):
        shared = {item.name: getattr(task, item.name) for item in fields(Task)}
        made[task.kind].append(Submittable(**shared, cwd=Path.cwd(), device=whole.device))
    return [made[kind] for kind in KINDS if kind in made]
