"""Run the tasks of a plan on this machine: as many at a time as there are GPUs, or CPU cores where there is none."""

import os
import re
import signal
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments import forks, restarts
from experiments.graph import Task
from training.command_line import Terminated
from training.processor import equal_bits
from training.progress import LINE_EVERY_S, numbers

POLL_S = 0.1
PROCESS_GROUP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SAVE_S = 120.0
# What the processes of a task import that takes long, whatever its model.
IMPORTS = {
    "training": ("training.loop", "torch.utils.tensorboard", "zarr"),
    "eval.job": ("eval.kinds", "models.build", "zarr"),
}


@dataclass
class _Running:
    task: Task
    process: BaseProcess
    slot: int
    started: float = field(default_factory=time.monotonic)


def slots_of(device: str) -> int:
    """Return how many tasks fit on this machine at once: one a GPU, or one a CPU core."""
    if device == "cuda":
        return len(gpus())
    return len(os.sched_getaffinity(0))


def gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES says, or else the numbers of all GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def run_tasks(tasks: list[Task], slots: int, device: str, console: Console) -> list[Task]:
    """Run `tasks` to their ends and return those that failed or could not start.

    A task starts when what it needs is done; when one fails, those that need it are left out and all others go on. Ctrl-C and
    SIGTERM let the running ones save and raise KeyboardInterrupt.
    """
    return _Pool(tasks, slots, device, console).run()


def _imports(task: Task) -> tuple[str, ...]:
    """Modules that a task needs, and its model's, which lies beside its spec: some need fla, which takes seconds."""
    model = [] if task.run is None else [re.sub(r"\.spec$", ".module", type(task.run.spec.model).__module__)]
    return (*IMPORTS.get(task.module, ()), *model)


class _Pool:
    def __init__(self, tasks: list[Task], slots: int, device: str, console: Console):
        self.waiting = deque(tasks)
        self.open = {task.key for task in tasks}
        self.free = list(range(slots))
        self.device, self.console = device, console
        self.gpus = gpus() if device == "cuda" else []
        # Of a torchrun that the shell is from: a training here is one process, and would wait for the others.
        self.environment = {name: value for name, value in os.environ.items() if name not in PROCESS_GROUP}
        self.environment["PYTHONUNBUFFERED"] = "1"
        if device == "cuda":
            self.environment.pop("OMP_NUM_THREADS", None)
        else:
            # No GPU is seen: one that an import had asked something of could not be used after a fork.
            self.environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **equal_bits(1, os.environ)}
            with forks.environment(self.environment):
                forks.preload([*dict.fromkeys(name for task in tasks for name in _imports(task))])
        self.running: list[_Running] = []
        self.failed: list[Task] = []
        self.finished: list[Task] = []
        self.total = len(tasks)
        self.job = f"local-{os.getpid()}-{time.time_ns()}"
        self.last_line = time.monotonic()

    def run(self) -> list[Task]:
        live = Live(console=self.console, refresh_per_second=2, transient=True) if self.console.is_terminal else None
        if live is not None:
            live.start()
        try:
            while self.waiting or self.running:
                self._start_ready()
                time.sleep(POLL_S)
                self._reap()
                self._show(live)
        except KeyboardInterrupt as interrupt:
            self._interrupt(signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)
            raise
        finally:
            if live is not None:
                live.stop()
        return self.failed

    def _start_ready(self) -> None:
        failed = {task.key for task in self.failed}
        for task in list(self.waiting):
            if any(need in failed for need in task.needs):
                self.waiting.remove(task)
                self.failed.append(task)
                self.open.discard(task.key)
                failed.add(task.key)
            elif self.free and not any(need in self.open for need in task.needs) and self._has_room(task):
                self.waiting.remove(task)
                self._start(task)

    def _has_room(self, task: Task) -> bool:
        """A timing waits until nothing else is left to do beside it, and then has the machine for itself."""
        if any(running.task.alone for running in self.running):
            return False
        return not task.alone or (not self.running and all(other.alone for other in self.waiting))

    def _start(self, task: Task) -> None:
        slot = self._pick_slot()
        self.free.remove(slot)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        restarts.append(task.journal, "start", job=self.job, mark=restarts.progress_mark(task.folder), node=os.uname().nodename)
        own = {"CUDA_VISIBLE_DEVICES": self._gpu(slot)} if self.device == "cuda" else {}
        with forks.environment(self.environment | own):
            # In a session of its own: Ctrl-C reaches the task through us, once, so that it can save.
            process = forks.start(task.module, task.args, task.log, forked=self.device != "cuda")
        self.running.append(_Running(task, process, slot))

    def _gpu(self, slot: int) -> str:
        return self.gpus[slot % len(self.gpus)]

    def _pick_slot(self) -> int:
        """A free one, on the GPU with the fewest tasks."""
        if self.device != "cuda":
            return self.free[0]
        busy = Counter(self._gpu(running.slot) for running in self.running)
        return min(self.free, key=lambda slot: busy[self._gpu(slot)])

    def _reap(self) -> None:
        for running in list(self.running):
            code = running.process.exitcode
            if code is None:
                continue
            self.running.remove(running)
            self.free = sorted([*self.free, running.slot])
            self._ended(running, code)

    def _ended(self, running: _Running, code: int) -> None:
        task = running.task
        mark = restarts.progress_mark(task.folder)
        fruitless = restarts.fruitless_starts(restarts.read(task.journal), self.job, mark)
        action, reason = restarts.decide(code, fruitless)
        restarts.append(task.journal, "end", job=self.job, mark=mark, code=code, action=action, reason=reason)
        seconds = f"({time.monotonic() - running.started:.0f} s)"
        if action == "again":
            self.waiting.appendleft(task)
            self.console.print(f"[yellow]again[/]  {task.name}: {reason}  {seconds}")
        elif action == "done":
            self.open.discard(task.key)
            self.finished.append(task)
            self.console.print(f"[green]done[/]  {task.name}  {seconds}")
        else:
            self.open.discard(task.key)
            self.failed.append(task)
            why = reason or f"exit code {code}"
            self.console.print(f"[red]failed[/]  {task.name}: {why}; log: {task.log}", highlight=False, soft_wrap=True)
            self.console.print(_tail(task.log), markup=False, highlight=False, style="dim", soft_wrap=True)

    def _interrupt(self, number: signal.Signals) -> None:
        self.console.print("interrupted: letting the running tasks save ...")
        for running in self.running:
            self._signal(running, number)
        end = time.monotonic() + SAVE_S
        while any(running.process.is_alive() for running in self.running) and time.monotonic() < end:
            time.sleep(POLL_S)
        for running in self.running:
            self._signal(running, signal.SIGKILL)  # those that are left

    def _signal(self, running: _Running, number: signal.Signals) -> None:
        if running.process.is_alive() and running.process.pid is not None:
            os.kill(running.process.pid, number)

    def _show(self, live: Live | None) -> None:
        lines = [_line(running) for running in self.running]
        if live is not None:
            table = Table.grid(padding=(0, 2))
            for cells in lines:
                table.add_row(*cells)
            live.update(Group(table, Text(f"{len(self.finished)} of {self.total} tasks done", style="dim")))
        elif time.monotonic() - self.last_line > LINE_EVERY_S:
            self.last_line = time.monotonic()
            for cells in lines:
                self.console.print("  ".join(cells), markup=False, highlight=False)


def _line(running: _Running) -> tuple[str, ...]:
    """Name and progress of a running task; a training's numbers are the last line of its metrics.jsonl."""
    task = running.task
    row = task.run.folder.last_row() if task.run is not None and task.kind == "train" else None
    if task.run is None or row is None:
        return (task.name, f"{time.monotonic() - running.started:.0f} s")
    train = task.run.spec.train
    left = (train.train_tokens - row["tokens"]) / max(row["tokens_per_s"], 1e-9)
    return (
        task.name,
        f"step {row['step']}/{train.num_steps}",
        numbers(row),
        f"{left / 60:.1f} min left",
    )


def _tail(log: Path, lines: int = 5) -> str:
    return "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-lines:])
