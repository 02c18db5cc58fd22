"""A fork is what a fresh process of the same command would be."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.forks import ROOT, Fork, Forks

CODE = """
import json, os, signal, sys, threading

def state():
    numbers = (number for number in signal.valid_signals() if isinstance(number, signal.Signals))
    streams = (sys.stdin, sys.stdout, sys.stderr)
    places = ((place, f"/proc/self/fd/{place}") for place in os.listdir("/proc/self/fd"))
    return {
        "name": __name__, "main": sys.modules["__main__"].__file__, "argv": sys.argv, "path": sys.path,
        "environment": dict(os.environ), "folder": os.getcwd(), "flags": str(sys.flags),
        "signals": [str(signal.getsignal(number)) for number in numbers], "threads": threading.active_count(),
        "streams": [(s.name, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()) for s in streams],
        "files": {place: os.readlink(path) for place, path in places if os.path.exists(path)},
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "launched by": os.getppid(),
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
def environment(tmp_path, monkeypatch):
    """One in which the module of these tests can be found."""
    (tmp_path / "suite_test_fork.py").write_text(CODE)
    return dict(os.environ, PYTHONPATH=str(tmp_path), PYTHONUNBUFFERED="1")


@pytest.fixture
def forks(environment):
    forks = Forks(("json",), environment)
    yield forks
    forks.close()


def ended(fork: Fork) -> int:
    end = time.monotonic() + 30
    while (code := fork.poll()) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return code


@pytest.mark.parametrize(
    ("action", "code", "said"),
    [("pass", 0, ""), ("sys.exit()", 0, ""), ("sys.exit(2)", 2, ""), ("sys.exit(75)", 75, ""), ("sys.exit(130)", 130, ""),
     ("sys.exit('no')", 1, "no\n"), ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
     ("import atexit; atexit.register(print, 'late')", 0, "late\n"),
     ("import atexit; atexit.register(print, 'late'); sys.exit(5)", 5, "late\n"),
     ("threading.Timer(0.2, print, ['late']).start(); sys.exit(5)", 5, "late\n"),
     ("os.kill(os.getpid(), 9)", -9, ""), ("os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
     ("os.kill(os.getpid(), signal.SIGINT)", -2, "KeyboardInterrupt\n"), ("os._exit(3)", 3, "")],
)  # fmt: skip
def test_a_fork_ends_as_a_process_does_and_says_the_same(forks, environment, tmp_path, action, code, said):
    log, fresh = tmp_path / "log", tmp_path / "fresh"
    log.write_text("of an earlier start\n")
    assert ended(forks.start("suite_test_fork", [action], log)) == code
    with open(fresh, "a") as file:
        command = [sys.executable, "-m", "suite_test_fork", action]
        assert subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file).returncode == code
    start = "of an earlier start\nto stdout\nfrom a child\n"
    for text in (log.read_text(), "of an earlier start\n" + fresh.read_text()):
        assert text.startswith(start) and text.endswith(said)
        assert ("Traceback" in text) == ("Error" in said or "Interrupt" in said)


def test_a_fork_finds_what_a_fresh_process_finds(forks, environment, tmp_path):
    args = ["state", "two words", "--größe", ""]
    assert ended(forks.start("suite_test_fork", args, tmp_path / "log")) == 0
    found = json.loads((tmp_path / "log").read_text())
    (tmp_path / "log").unlink()
    with open(tmp_path / "log", "a") as file:
        subprocess.run(
            [sys.executable, "-m", "suite_test_fork", *args], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=file, start_new_session=True, check=True,
        )  # fmt: skip
    assert found == json.loads((tmp_path / "log").read_text())
    assert found["argv"][1:] == args and found["launched by"] == os.getpid()


def test_a_signal_reaches_the_fork_and_none_what_has_ended(forks, tmp_path):
    fork = forks.start("suite_test_fork", ["import time; time.sleep(60)"], tmp_path / "log")
    assert fork.poll() is None
    fork.send_signal(signal.SIGKILL)
    assert ended(fork) == -9
    fork.send_signal(signal.SIGTERM)  # its number may be another's now


def test_forks_outlive_the_process_that_they_come_from_and_no_other_can_start(forks, tmp_path):
    fork = forks.start("suite_test_fork", ["import time; time.sleep(1); sys.exit(75)"], tmp_path / "log")
    forks._server.kill()
    with pytest.raises(ChildProcessError, match="tasks are forked from has failed"):
        forks.start("suite_test_fork", ["pass"], tmp_path / "log")
    assert ended(fork) == 75


def test_a_module_that_cannot_be_imported_is_named(environment, tmp_path):
    forks = Forks(("json", "suite_test_missing"), environment)
    with pytest.raises(ChildProcessError, match="No module named 'suite_test_missing'"):
        forks.start("suite_test_fork", ["pass"], tmp_path / "log")
    forks.close()


def test_a_fork_that_fails_is_an_error(environment, tmp_path):
    """The second one of the two that make a task: its parent is then gone, and there is no task."""
    (tmp_path / "suite_test_full.py").write_text(
        "import errno, os\nfork, calls = os.fork, []\n"
        "def refused():\n    calls.append(1)\n    if len(calls) == 2:\n        raise BlockingIOError(errno.EAGAIN, 'no more')\n"
        "    return fork()\nos.fork = refused\n"
    )
    forks = Forks(("suite_test_full",), environment)
    with pytest.raises(ChildProcessError, match="no more"):
        forks.start("suite_test_fork", ["pass"], tmp_path / "log")
    forks.close()
