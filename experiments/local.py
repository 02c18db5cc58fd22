"""Run the jobs of a plan on this machine: as many at a time as there are GPUs, or CPU cores where there is none."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments.plan import Job
from training.run_folder import RunFolder
from training.signals import EXIT_FINISHED, EXIT_REQUEUE

ROOT = Path(__file__).parent.parent
POLL_S = 0.2
LINE_EVERY_S = 30.0


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen
    slot: int
    log: Path
    started: float = field(default_factory=time.monotonic)


def slots_of(device: str) -> int:
    """How many jobs fit on this machine at once: one a GPU, or one a CPU core."""
    if device == "cuda":
        import torch

        return torch.cuda.device_count()
    return len(os.sched_getaffinity(0))


def run_jobs(jobs: list[Job], slots: int, device: str, console: Console) -> list[Job]:
    """Run `jobs` to their ends and return those that failed or could not start.

    A job starts when what it needs is done; when one fails, those that need it are left out and all others go on. Ctrl-C
    lets the running ones save and raises KeyboardInterrupt.
    """
    return _Pool(jobs, slots, device, console).run()


class _Pool:
    def __init__(self, jobs: list[Job], slots: int, device: str, console: Console):
        self.waiting = deque(jobs)
        self.pending_names = {job.name for job in jobs}
        self.free = list(range(slots))
        self.device, self.console = device, console
        self.running: list[_Running] = []
        self.failed: list[Job] = []
        self.finished: list[str] = []
        self.total = len(jobs)
        self.last_line = time.monotonic()

    def run(self) -> list[Job]:
        live = Live(console=self.console, refresh_per_second=2, transient=True) if self.console.is_terminal else None
        if live is not None:
            live.start()
        try:
            while self.waiting or self.running:
                self._start_ready()
                time.sleep(POLL_S)
                self._reap()
                self._show(live)
        except KeyboardInterrupt:
            self._interrupt()
            raise
        finally:
            if live is not None:
                live.stop()
        return self.failed

    def _start_ready(self) -> None:
        for job in list(self.waiting):
            if not self.free:
                return
            if any(need in {failed.name for failed in self.failed} for need in job.needs):
                self.waiting.remove(job)
                self.failed.append(job)
            elif not any(need in self.pending_names for need in job.needs):
                self.waiting.remove(job)
                self._start(job)

    def _start(self, job: Job) -> None:
        slot = self.free.pop(0)
        assert job.run is not None
        log = job.run.folder.path / "logs" / f"{job.name.split()[0]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        if self.device == "cuda":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[slot] if visible else str(slot)
            environment.pop("OMP_NUM_THREADS")
        with open(log, "a") as file:
            # A session of its own: Ctrl-C reaches the job through us, once, so that it can save.
            process = subprocess.Popen(
                [sys.executable, "-m", job.module, *job.args],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self.running.append(_Running(job, process, slot, log))

    def _reap(self) -> None:
        for running in list(self.running):
            code = running.process.poll()
            if code is None:
                continue
            self.running.remove(running)
            self.free.append(running.slot)
            self.free.sort()
            name = running.job.name
            if code == EXIT_REQUEUE:
                self.waiting.appendleft(running.job)
            elif code == EXIT_FINISHED:
                self.pending_names.discard(name)
                self.finished.append(name)
                self.console.print(f"[green]done[/]  {name}  ({time.monotonic() - running.started:.0f} s)")
            else:
                self.pending_names.discard(name)
                self.failed.append(running.job)
                self.console.print(
                    f"[red]failed[/]  {name}, exit code {code}; log: {running.log}", highlight=False, soft_wrap=True
                )
                self.console.print(_tail(running.log), markup=False, highlight=False, style="dim", soft_wrap=True)

    def _interrupt(self) -> None:
        self.console.print("interrupted: letting the running jobs save ...")
        for running in self.running:
            running.process.send_signal(signal.SIGINT)
        for running in self.running:
            try:
                running.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                running.process.kill()

    def _show(self, live: Live | None) -> None:
        lines = [_line(running) for running in self.running]
        if live is not None:
            table = Table.grid(padding=(0, 2))
            for cells in lines:
                table.add_row(*cells)
            live.update(Group(table, Text(f"{len(self.finished)} of {self.total} jobs done", style="dim")))
        elif time.monotonic() - self.last_line > LINE_EVERY_S:
            self.last_line = time.monotonic()
            for cells in lines:
                self.console.print("  ".join(cells), markup=False, highlight=False)


def _line(running: _Running) -> tuple[str, ...]:
    """Name and progress of a running job; a training job's numbers are the last line of its metrics.jsonl."""
    run = running.job.run
    row = last_row(run.folder) if run is not None and running.job.module == "training" else None
    if run is None or row is None:
        return (running.job.name, f"{time.monotonic() - running.started:.0f} s")
    train = run.spec.train
    left = (train.train_tokens - row["tokens"]) / max(row["tokens_per_s"], 1e-9)
    mfu = "" if row["mfu"] is None else f"MFU {100 * row['mfu']:.0f}%"
    step = f"step {row['step']}/{train.num_steps}"
    return (
        running.job.name,
        step,
        f"loss {row['loss']:.3f}",
        f"{row['tokens_per_s']:,.0f} tokens/s",
        mfu,
        f"{left / 60:.1f} min left",
    )


def last_row(folder: RunFolder) -> dict | None:
    """The newest whole line of a run's metrics.jsonl."""
    try:
        with open(folder.metrics_file, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 2048))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            continue
    return None


def _tail(log: Path, lines: int = 5) -> str:
    return "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-lines:])
