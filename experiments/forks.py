"""Tasks as forks of one process that has imported, once, what takes them seconds. For tasks on CPUs: CUDA survives no fork.

A fork finds what a fresh `python -m MODULE ARGS` finds, is the launcher's own child, and gets SIGTERM when the launcher dies.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def prctl(option: int, value: int) -> None:
    """Of prctl(2), what concerns parents and children. OSError where the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}): {os.strerror(ctypes.get_errno())}")


class Fork:
    """A child of this process, with what of `subprocess.Popen` the launcher needs."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Forks:
    """The process that `modules` are imported in, with this environment, from the first start on."""

    def __init__(self, modules: Sequence[str], environment: dict[str, str]):
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # a fork whose parent leaves becomes our child
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed with the process)
        self._server = subprocess.Popen(
            [sys.executable, "-m", "experiments.forks", str(os.getpid()), *modules], cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, start_new_session=True,
        )  # fmt: skip

    def start(self, module: str, args: Sequence[str], log: Path) -> Fork:
        """`python -m MODULE ARGS`, what it says appended to `log`. ChildProcessError, with the reason, if it cannot be."""
        assert self._server.stdin is not None and self._server.stdout is not None
        try:
            print(json.dumps([module, list(args), str(log.absolute())]), file=self._server.stdin, flush=True)
            return Fork(int(self._server.stdout.readline()))
        except (BrokenPipeError, ValueError):
            self._said.seek(0)
            said = self._said.read().strip().splitlines()[-1:]
            raise ChildProcessError(f"the process that tasks are forked from has failed: {' '.join(said)}") from None

    def close(self) -> None:
        """Start no more; what was started goes on."""
        self._server.kill()
        self._server.communicate()
        self._said.close()
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def _serve(launcher: int, modules: Sequence[str]) -> None:
    """Import `modules`; then, for each line of stdin, fork and answer with a line that holds the child's number.

    The fork is a grandchild, whose parent leaves at once so that the launcher becomes its parent: the line ends when it has.
    Returns when stdin ends, and in each fork after its task.
    """
    codes: list[int] = []
    atexit.register(lambda: os._exit(codes[0]) if codes else None)  # the first is called last
    for name in modules:
        import_module(name)
    gc.freeze()  # or the collector would write to, and so copy, all pages that are shared
    for order in sys.stdin:
        between = os.fork()
        if not between:
            between = os.getpid()
            pid = os.fork()
            if not pid:
                try:
                    _become(launcher, between, *json.loads(order))
                except SystemExit as stop:
                    if isinstance(stop.code, int):
                        codes.append(stop.code)  # leave without taking all modules down, which is most of a short task
                    raise
                return
            os.write(1, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        os.write(1, b"\n")


def _become(launcher: int, between: int, module: str, args: list[str], log: str) -> None:
    """What `subprocess.Popen` and the interpreter's start do for a fresh process."""
    while os.getppid() == between:
        time.sleep(0.001)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != launcher:  # it died before
        return
    os.setsid()
    for place, path, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)):
        handle = os.open(path, flags)
        os.dup2(handle, place)
        os.close(handle)
    os.dup2(1, 2)
    sys.argv[:] = [module, *args]  # its first item is set to the file by what follows
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2:])
