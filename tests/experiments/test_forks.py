"""A process of a task is what a fresh process of the same command would be."""

import json
import os
import subprocess
import sys
from functools import partial
from multiprocessing.process import BaseProcess

import pytest

from experiments import forks
from experiments.forks import ROOT

CODE = """
import json, os, signal, sys, threading

def state():
    numbers = (number for number in signal.valid_signals() if isinstance(number, signal.Signals))
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return {
        "name": __name__, "main": sys.modules["__main__"].__file__, "argv": sys.argv,
        "environment": dict(os.environ), "folder": os.getcwd(), "flags": str(sys.flags),
        "signals": [str(signal.getsignal(number)) for number in numbers],
        "streams": [(s.encoding.lower(), s.isatty()) for s in streams],
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    }

if __name__ == "__main__":
    if sys.argv[1] == "state":
        json.dump(state(), sys.stdout)
    else:
        print("to stdout")
        os.system("echo from a child")
        exec(sys.argv[1])
"""


@pytest.fixture
def variables(tmp_path, monkeypatch):
    """An environment in which the module of these tests can be found."""
    (tmp_path / "suite_test_fork.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return dict(os.environ, PYTHONPATH=str(tmp_path), PYTHONUNBUFFERED="1", COLOUR="red")


@pytest.fixture(params=[True, False], ids=["forked", "spawned"])
def start(request, variables, tmp_path):
    def start(*args: str) -> BaseProcess:
        with forks.environment(variables):
            return forks.start("suite_test_fork", args, tmp_path / "log", forked=request.param)

    return start


def ended(process: BaseProcess) -> int | None:
    process.join(60)
    return process.exitcode


@pytest.mark.parametrize(
    ("action", "code", "said"),
    [("pass", 0, ""), ("sys.exit()", 0, ""), ("sys.exit(2)", 2, ""), ("sys.exit(75)", 75, ""), ("sys.exit(130)", 130, ""),
     ("sys.exit('no')", 1, "no\n"), ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
     ("import atexit; atexit.register(print, 'late')", 0, "late\n"),
     ("import atexit; atexit.register(print, 'late'); sys.exit(5)", 5, "late\n"),
     ("threading.Timer(0.2, print, ['late']).start(); sys.exit(5)", 5, "late\n"),
     ("os.kill(os.getpid(), 9)", -9, ""), ("os.kill(os.getpid(), signal.SIGTERM)", -15, ""), ("os._exit(3)", 3, "")],
)  # fmt: skip
def test_a_process_ends_as_a_command_does_and_says_the_same(start, variables, tmp_path, action, code, said):
    log, fresh = tmp_path / "log", tmp_path / "fresh"
    log.write_text("of an earlier start\n")
    assert ended(start(action)) == code
    with open(fresh, "a") as file:
        command = [sys.executable, "-m", "suite_test_fork", action]
        assert subprocess.run(command, cwd=ROOT, env=variables, stdout=file, stderr=file).returncode == code
    begin = "of an earlier start\nto stdout\nfrom a child\n"
    for text in (log.read_text(), "of an earlier start\n" + fresh.read_text()):
        assert text.startswith(begin) and text.endswith(said)
        assert ("Traceback" in text) == ("Error" in said)


def test_a_process_finds_what_a_command_finds(start, variables, tmp_path):
    args = ["state", "two words", "--größe", ""]
    assert ended(start(*args)) == 0
    found = json.loads((tmp_path / "log").read_text())
    (tmp_path / "log").unlink()
    with open(tmp_path / "log", "a") as file:
        subprocess.run(
            [sys.executable, "-m", "suite_test_fork", *args], cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=file,
            stderr=file, start_new_session=True, check=True,
        )  # fmt: skip
    fresh = json.loads((tmp_path / "log").read_text())
    assert found == fresh and found["argv"][1:] == args and found["environment"]["COLOUR"] == "red"


def test_work_that_ends_its_fork_is_done_again_in_its_turn():
    here = os.getpid()

    def work(number):
        if number == 1 and os.getpid() != here:
            os._exit(0)
        return number, os.getpid() == here

    assert [wait() for wait in forks.begin(partial(work, number) for number in range(5))] == [
        (number, number == 1) for number in range(5)
    ]
