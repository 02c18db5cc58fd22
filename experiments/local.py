"""Run the tasks of a plan on this machine, by default one per GPU, or one per CPU core. On request, several processes share a
training run."""

import os
import shutil
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from experiments import forks, restarts
from experiments.graph import Planned
from training.command_line import Terminated
from training.hardware import equal_bits
from training.progress import LINE_EVERY_S, numbers

POLL_S = 0.1
PROCESS_GROUP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ELASTIC = "TORCHELASTIC_"
SAVE_S = 120.0
"""Seconds that tasks have to save after a signal, and that the other processes of a training have to exit after the first."""
GRACE_S = 10.0
"""Seconds that the other processes of a training have to report their error after one has failed."""
TOGETHER = (restarts.FINISHED, restarts.REQUEUE, restarts.INTERRUPTED)
"""Exit codes with which all processes of a training end at about the same time."""
# Slow imports of each kind of task, whatever its model.
IMPORTS = {
    "training": ("training.loop", "torch.utils.tensorboard", "zarr"),
    "eval.job": ("eval.kinds", "models.build", "zarr", "pandera.pandas"),
}


@dataclass
class _Running:
    """A task, its processes, and the name of each one's GPU (empty on CPUs)."""

    task: Planned
    processes: list[BaseProcess]
    gpus: list[str]
    started: float = field(default_factory=time.monotonic)
    failed: tuple[int, float] | None = None
    """Number of the process that failed first, and when."""
    left: float | None = None
    """Time at which the first process saved and left."""
    before: dict[Path, int] = field(default_factory=dict)
    """Sizes of its logs in bytes when it started."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def alive(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def send(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.is_alive() and process.pid is not None:
                with suppress(ProcessLookupError):  # ended just now
                    os.kill(process.pid, number)

    def ended_with(self) -> int | None:
        """Return the exit code once every process has ended: that of the process that failed first, if any did. The others
        would wait forever for a process that failed or left, so they are killed after GRACE_S or SAVE_S."""
        codes = [process.exitcode for process in self.processes]
        if self.left is None and not {restarts.REQUEUE, restarts.INTERRUPTED}.isdisjoint(codes):
            self.left = time.monotonic()
        if self.left is not None and time.monotonic() - self.left > SAVE_S:
            self.send(signal.SIGKILL)
        elif self.failed is None:
            wrong = [at for at, code in enumerate(codes) if code not in (None, *TOGETHER)]
            at = min(wrong, key=lambda at: codes[at] != restarts.ERROR, default=None)  # prefer a mistake that the user can fix
            self.failed = None if at is None else (at, time.monotonic())
        elif time.monotonic() - self.failed[1] > GRACE_S:
            self.send(signal.SIGKILL)
        if None in codes:
            return None
        return max(code or 0 for code in codes) if self.failed is None else codes[self.failed[0]]

    @property
    def log(self) -> Path:
        """Log of the process that failed first, or else of rank 0."""
        return _log(self.task, 0 if self.failed is None else self.failed[0])

    def progress(self) -> str:
        """Name and progress of the task; for a training, progress is the last line of its metrics.jsonl."""
        run = self.task.run
        row = run.folder.last_row() if run is not None and self.task.kind == "train" else None
        if run is None or row is None:
            return f"{self.task.name}  {self.seconds:.0f} s"
        train = run.spec.train
        left = (train.train_tokens - row["tokens"]) / max(row["tokens_per_s"], 1e-9)
        return f"{self.task.name}  step {row['step']}/{train.num_steps}  {numbers(row)}  {left / 60:.1f} min left"


def _log(task: Planned, rank: int) -> Path:
    return task.log.with_suffix(f".rank{rank}.log") if rank else task.log


def gpus() -> list[str]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES or, if it is not set, the numbers of all GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def places(slots: int | None, processes: int, device: str) -> list[str]:
    """Return the GPU of each slot; on CPUs a slot is a core. ValueError if there are none, or too few for a training."""
    for flag, value in (("slots", slots), ("processes", processes)):
        if value is not None and value < 1:
            raise ValueError(f"--{flag} {value}: give at least 1.")
    names = gpus() if device == "cuda" else [""]
    slots = slots or (len(names) if device == "cuda" else max(_cores(), processes))
    found = [names[slot % len(names)] for slot in range(slots)]
    if processes > _apart(found):
        what = f"GPUs {', '.join(names)}" if device == "cuda" and slots >= len(names) else f"--slots {slots}"
        raise ValueError(f"--processes {processes}: {what} are too few for one training; give fewer processes")
    return found


def _apart(free: list[str]) -> int:
    """Count the processes of one training that fit into these slots; on GPUs each needs one of its own."""
    return len(free) if "" in free else len(set(free))


def run_tasks(tasks: list[Planned], slots: int | None, processes: int, device: str, console: Console) -> list[Planned]:
    """Run `tasks` in `slots` slots (default: one per GPU, or one per CPU core). A training takes `processes` slots, one per
    process. Returns the tasks that failed or could not start. ValueError if the slots are too few for a training.

    A task starts when the tasks it needs are done. If a task fails, those that need it are skipped and all others go on. On
    Ctrl-C or SIGTERM, running tasks save and KeyboardInterrupt is raised. After a training has reached its --max-hours, no
    further task starts, and Terminated is raised when the running ones have ended."""
    return _Pool(tasks, slots, processes, device, console).run()


def _group(size: int) -> list[dict[str, str]]:
    """Return the environment variables of each process of a training, as torchrun sets them; none for a single process."""
    if size == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = dict(WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return [common | dict(RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(size)]


def _imports(task: Planned) -> tuple[str, ...]:
    """Modules that a task imports, including its model's, which lies beside the spec: some import fla, which takes seconds."""
    model = () if task.run is None else (type(task.run.spec.model).__module__.removesuffix(".spec") + ".module",)
    return (*IMPORTS.get(task.module, ()), *model)


def _cores() -> int:
    """Count the cores that this process may use, or all cores on systems that do not tell, such as macOS."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Pool:
    def __init__(self, tasks: list[Planned], slots: int | None, processes: int, device: str, console: Console):
        self.waiting = deque(tasks)
        self.open = {task.key for task in tasks}
        self.running: list[_Running] = []
        self.failed: list[Planned] = []
        self.total, self.done, self.leaving = len(tasks), 0, False
        self.forked, self.processes, self.console = device != "cuda", processes, console
        self.free = places(slots, processes, device)
        # Under torchrun, a training that inherits these variables would wait for torchrun's other processes.
        self.environment = {
            name: value for name, value in os.environ.items() if name not in PROCESS_GROUP and not name.startswith(ELASTIC)
        }
        self.environment["PYTHONUNBUFFERED"] = "1"
        if self.forked:
            # Hide all GPUs: a process that has initialised CUDA, as some imports do, cannot use it after a fork.
            self.environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **equal_bits(1, os.environ)}
            with forks.environment(self.environment):
                forks.preload([*dict.fromkeys(name for task in tasks for name in _imports(task))])
        else:
            self.environment.pop("OMP_NUM_THREADS", None)
        self.job = f"local-{os.getpid()}-{time.time_ns()}"
        self.last_line = time.monotonic()

    def run(self) -> list[Planned]:
        with self.console.status("") as status:
            try:
                while self.running or (self.waiting and not self.leaving):
                    if not self.leaving:
                        self._start_ready()
                    time.sleep(POLL_S)
                    for running in list(self.running):
                        code = running.ended_with()
                        if code is not None:
                            self._ended(running, code)
                    self._show(status)
            except BaseException as error:
                asked = isinstance(error, KeyboardInterrupt) and not isinstance(error, Terminated)
                self._interrupt(signal.SIGINT if asked else signal.SIGTERM)
                raise
        if self.leaving:
            raise Terminated("--max-hours")
        return self.failed

    def _start_ready(self) -> None:
        failed = {task.key for task in self.failed}
        for task in list(self.waiting):
            if not failed.isdisjoint(task.needs):
                self.waiting.remove(task)
                self.failed.append(task)
                self.open.discard(task.key)
                failed.add(task.key)
            elif self._width(task) <= _apart(self.free) and self.open.isdisjoint(task.needs) and self._has_room(task):
                self.waiting.remove(task)
                self._start(task)

    def _has_room(self, task: Planned) -> bool:
        """A timing waits until only timings are left, and then has the machine to itself."""
        return not task.alone or (not self.running and all(other.alone for other in self.waiting))

    def _width(self, task: Planned) -> int:
        return self.processes if task.kind == "train" else 1

    def _start(self, task: Planned) -> None:
        taken: list[str] = []
        for _ in range(self._width(task)):
            apart = [gpu for gpu in self.free if self.forked or gpu not in taken]
            in_use = [gpu for running in self.running for gpu in running.gpus]
            taken.append(min(apart, key=in_use.count))  # the GPU with the fewest tasks
            self.free.remove(taken[-1])
        task.log.parent.mkdir(parents=True, exist_ok=True)
        restarts.note_start(task.journal, self.job, task.folder)
        started = list[BaseProcess]()
        logs = [_log(task, rank) for rank in range(len(taken))]
        before = {log: log.stat().st_size for log in logs if log.is_file()}
        self.running.append(_Running(task, started, taken, before=before))  # registered first, so that an interrupt reaches it
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(filter(None, taken))}
        for rank, variables in enumerate(_group(len(taken))):
            with forks.environment(self.environment | visible | variables):
                # The task has a session of its own: it gets Ctrl-C only from us, and once, so that it can save.
                started.append(forks.start(task.module, task.args, _log(task, rank), forked=self.forked))

    def _ended(self, running: _Running, code: int) -> None:
        task = running.task
        self.running.remove(running)
        self.free += running.gpus
        action, reason = restarts.note_end(task.journal, self.job, task.folder, code)
        seconds = f"({running.seconds:.0f} s)"
        if action == "again" and code == restarts.REQUEUE and "--max-hours" in task.args:
            self.leaving = True
            self.console.print(f"[yellow]left[/]  {task.name}: {reason}; with --max-hours nothing more starts  {seconds}")
            return
        if action == "again":
            self.waiting.appendleft(task)
            self.console.print(f"[yellow]again[/]  {task.name}: {reason}  {seconds}")
            return
        self.open.discard(task.key)
        if action == "done":
            self.done += 1
            self.console.print(f"[green]done[/]  {task.name}  {seconds}")
        else:
            self.failed.append(task)
            why = reason or f"exit code {code}"
            log = running.log.read_bytes() if running.log.is_file() else b""  # the folder may have been deleted
            own = log[running.before.get(running.log, 0) :].decode(errors="replace")
            if not own and running.log.is_file() and not shutil.disk_usage(running.log).free:
                why += ", no space left on the log's disk: free some space and start the same command again"
            self.console.print(
                f"[red]failed[/]  {task.name}: {why}; log: {escape(str(running.log))}", highlight=False, soft_wrap=True
            )
            tail = "\n".join("    " + line for line in own.splitlines()[-5:])
            self.console.print(tail, markup=False, highlight=False, style="dim", soft_wrap=True)

    def _interrupt(self, number: signal.Signals) -> None:
        self.console.print("interrupted: letting the running tasks save ...")
        for running in self.running:
            running.send(number)
        end = time.monotonic() + SAVE_S
        while any(running.alive for running in self.running) and time.monotonic() < end:
            time.sleep(POLL_S)
        for running in self.running:
            running.send(signal.SIGKILL)  # to those still alive

    def _show(self, status: Status) -> None:
        """Show the running tasks: continuously on a terminal, else one line per task now and then."""
        if self.console.is_terminal:
            lines = [*(running.progress() for running in self.running), f"{self.done} of {self.total} tasks done"]
            status.update(Text("\n".join(lines)))
        elif time.monotonic() - self.last_line > LINE_EVERY_S:
            self.last_line = time.monotonic()
            for running in self.running:
                self.console.print(running.progress(), markup=False, highlight=False)
