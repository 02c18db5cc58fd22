"""Processes that run `python -m MODULE ARGS` in a session of their own, and get SIGTERM when the launcher dies.

On CPUs they are forked from one process that has done the slow imports once; CUDA does not survive a fork. `begin` runs
functions in forks of this process."""

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def preload(modules: Sequence[str]) -> None:
    """Start the fork server, from which other processes are forked, in this environment, and import `modules` there."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the launcher handles Ctrl-C
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


def start(module: str, args: Sequence[str], log: Path, *, forked: bool) -> BaseProcess:
    """Start `python -m MODULE ARGS` in this environment and folder; its output is appended to `log`."""
    context = multiprocessing.get_context("forkserver") if forked else multiprocessing.get_context("spawn")
    told = (module, list(args), log.absolute(), dict(os.environ), os.getcwd())
    process = context.Process(target=_become, args=told)
    process.start()
    return process


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set the environment to `variables` inside the `with` block."""
    before = dict(os.environ)
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def begin(works: Iterable[Callable[[], Any]]) -> Sequence[Callable[[], Any]]:
    """Begin each of `works` in a fork of this process, one per core at a time. Returns a function per work that waits for its
    value, which must be small (it has to fit into a pipe). A work that failed is run again here, to raise its error here."""
    context, begun = multiprocessing.get_context("fork"), []
    gc.freeze()  # keeps the forks' garbage collection from scanning, and so copying, the memory pages of this process
    running: list[BaseProcess] = []
    for work in works:
        while len(running) >= (os.cpu_count() or 1):
            connection.wait([each.sentinel for each in running])
            running = [each for each in running if each.is_alive()]
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(sender, work), daemon=True)
        process.start()
        sender.close()
        running.append(process)
        begun.append(partial(_received, receiver, work))
    return begun


def _send(sender: connection.Connection, work: Callable[[], Any]) -> None:
    with suppress(BaseException):
        sender.send(work())


def _received(receiver: connection.Connection, work: Callable[[], Any]) -> Any:
    try:
        return receiver.recv()
    except EOFError:
        return work()


def say_to(log: Path) -> None:
    """Append all output of this process and of those that it starts to `log` from now on."""
    with open(log, "ab") as file:
        for place in (1, 2):
            os.dup2(file.fileno(), place)
    sys.stdout, sys.stderr = (os.fdopen(place, "w", 1, errors="backslashreplace", closefd=False) for place in (1, 2))


def _become(module: str, args: list[str], log: Path, variables: dict[str, str], folder: str) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _set(variables)
    os.chdir(folder)
    sys.path.insert(0, str(ROOT))
    say_to(log)
    threading.Thread(target=_leave_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    sys.argv[:] = [module, *args]  # run_module replaces the first item by the file
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not call them
        _give_up_unwritten()


def _give_up_unwritten() -> None:
    """Drop output for which the disk has no room, which would turn the exit code into 1."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _leave_with(launcher: BaseProcess) -> None:
    """Send this process SIGTERM when the launcher has died, so that it saves and exits."""
    launcher.join()
    os.kill(os.getpid(), signal.SIGTERM)
