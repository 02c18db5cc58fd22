"""The local launcher: what waits for what, bounded restarts, and letting go when it is told to."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from experiments import local, restarts
from experiments.graph import Planned
from experiments.local import run_tasks
from training.command_line import Terminated

CODE = """
import os, shutil, signal, sys, time
from pathlib import Path
name, action, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
if action == "gpu":
    name += " " + os.environ["CUDA_VISIBLE_DEVICES"]
if action == "group":
    name += " " + " ".join(os.environ.get(each, "-") for each in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    name += f" {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} on {os.environ['CUDA_VISIBLE_DEVICES']}"
if action in ("one-crashes", "one-leaves"):
    if os.environ["RANK"] == "1":
        print("error: what the second says", flush=True)
        os._exit(7 if action == "one-crashes" else 75)
    time.sleep(60)
if action == "environment":
    name += " " + " ".join(os.environ.get(each, "-") for each in ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "MKL_CBWR"))
with open(folder / "order", "a") as file:
    file.write(f"begin {name}\\n")
if action == "sleep":
    def save(number, frame):
        with open(folder / "order", "a") as file:
            file.write(f"{signal.Signals(number).name} {name}\\n")
        sys.exit(75)
    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGINT, save)
    (folder / "asleep").touch()
    time.sleep(60)
if action == "crash-then-work" and not (folder / "crashed").exists():
    (folder / "crashed").touch()
    os.kill(os.getpid(), 9)
if action == "progress":
    steps = folder / "checkpoints"
    count = len(list(steps.glob("step-*"))) + 1
    (steps / f"step-{count:08d}").mkdir(parents=True)
    sys.exit(0 if count > 6 else 75)
time.sleep(1.0 if action == "gpu" else 0.1)
with open(folder / "order", "a") as file:
    file.write(f"end {name}\\n")
if action == "mistake":
    print("error: a mistake", flush=True)
if action == "delete":
    shutil.rmtree(folder / "logs")
sys.exit({"again": 75, "mistake": 2, "delete": 2}.get(action, 0))
"""


@pytest.fixture
def task(tmp_path, monkeypatch):
    (tmp_path / "suite_test_job.py").write_text(CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, action: str = "work", needs: tuple[str, ...] = (), alone: bool = False) -> Planned:
        return Planned(name, "suite_test_job", (name, action, str(tmp_path)), needs, (), tmp_path, alone=alone)

    return make


def order(folder: Path) -> list[str]:
    return (folder / "order").read_text().splitlines()


def run(tasks: list[Planned], slots: int = 2, processes: int = 1) -> list[str]:
    return [task.key for task in run_tasks(tasks, slots, processes, "cpu", Console(quiet=True))]


def test_tasks_wait_for_what_they_need_and_failures_leave_the_rest_alone(task, tmp_path):
    failed = run([task("b", needs=("a",)), task("a"), task("bad", "mistake"), task("after-bad", needs=("bad",)), task("c")])
    assert failed == ["bad", "after-bad"]
    lines = order(tmp_path)
    assert lines.index("end a") < lines.index("begin b")
    assert "begin after-bad" not in lines and "end c" in lines


def test_a_timing_has_the_machine_for_itself(task, tmp_path):
    assert run([task("t1", alone=True), task("a"), task("b"), task("t2", alone=True)]) == []
    lines = order(tmp_path)
    for name in ("t1", "t2"):
        assert lines.index(f"end {name}") == lines.index(f"begin {name}") + 1
        assert all(lines.index(f"end {other}") < lines.index(f"begin {name}") for other in ("a", "b"))


def test_restarts_are_bounded_but_not_while_there_is_progress(task, tmp_path):
    assert run([task("crash-then-work", "crash-then-work")]) == []
    assert run([task("goes-on", "progress")]) == []
    assert order(tmp_path).count("begin goes-on") == 7
    assert run([task("for-ever", "again")]) == ["for-ever"]
    assert order(tmp_path).count("begin for-ever") == restarts.MAX_RESTARTS + 1
    ends = [e for e in restarts.read(task("for-ever").journal) if e["event"] == "end"]
    assert ends[-1]["action"] == "failed" and "given up after 4 starts without progress" in ends[-1]["reason"]


def test_a_training_that_has_had_its_hours_is_not_started_again_nor_is_anything_else(task, tmp_path):
    """Others that run end by themselves; the shell or scheduler is told to start the command again."""
    saves = task("train:a", "again")
    saves = replace(saves, args=(*saves.args, "--max-hours", "0.5"))
    shown = io.StringIO()
    with pytest.raises(Terminated):
        run_tasks([saves, task("b", "gpu"), task("c")], 2, 1, "cpu", Console(file=shown, width=500))
    assert sorted(order(tmp_path)) == ["begin b ", "begin train:a", "end b ", "end train:a"]
    assert "left  train a: saved, to go on; with --max-hours nothing more starts" in shown.getvalue()


def test_progress_is_a_checkpoint_or_what_evaluations_have_written(tmp_path):
    marks = [restarts.progress_mark(tmp_path / "nowhere")]
    for path, text in (("checkpoints/step-00000001/x", ""), ("checkpoints/step-00000002/x", ""), ("evals/a.partial.jsonl", "1"),
                       ("evals/a.partial.jsonl", "12"), ("evals/b.parquet", "123"), ("evals/inner/c", "1")):  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        marks.append(restarts.progress_mark(tmp_path))
    assert len(set(marks)) == len(marks)
    for path in ("logs/train.log", "checkpoints/step-00000003.partial/x", "metrics.jsonl"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("more")
        assert restarts.progress_mark(tmp_path) == marks[-1]


@pytest.mark.parametrize(
    ("code", "fruitless", "action", "why"),
    [(0, 9, "done", ""), (75, 3, "again", "saved"), (75, 4, "failed", "given up after 4"),
     (-9, 1, "again", "killed by SIGKILL"), (137, 1, "again", "killed by SIGKILL"),
     (1, 1, "again", "exit code 1"), (2, 1, "failed", ""), (3, 1, "failed", ""),
     (130, 1, "failed", "interrupted")],
)  # fmt: skip
def test_what_becomes_of_a_task(code, fruitless, action, why):
    decided, reason = restarts.decide(code, fruitless, 3)
    assert decided == action and why in reason


def test_more_slots_than_gpus_are_spread_over_them(task, tmp_path, monkeypatch):
    """Two tasks have a GPU each; of four each GPU gets two, and the fifth goes where one has ended."""
    monkeypatch.setattr(local, "gpus", lambda: ["3", "7"])

    def lines_of(names: str) -> list[list[str]]:
        (tmp_path / "order").unlink(missing_ok=True)
        assert run_tasks([task(name, "gpu") for name in names], 4, 1, "cuda", Console(quiet=True)) == []
        return [line.split() for line in order(tmp_path)]

    assert sorted(gpu for what, _, gpu in lines_of("ab") if what == "begin") == ["3", "7"]
    lines = lines_of("abcde")
    begun = [(name, gpu) for what, name, gpu in lines if what == "begin"]
    assert sorted(gpu for _, gpu in begun[:4]) == ["3", "3", "7", "7"]
    fifth = ["begin", *begun[4]]
    assert begun[4][1] in {gpu for what, _, gpu in lines[: lines.index(fifth)] if what == "end"}


def test_processes_of_a_training_find_each_other_and_each_has_its_place(task, tmp_path):
    """Whatever else runs has one process, and starts once there is a place."""
    assert run([task("train:a", "group"), task("evaluate:a", needs=("train:a",)), task("b"), task("c")], 3, 3) == []
    lines = order(tmp_path)
    group = [line.split()[2:] for line in lines if line.startswith("begin train:a")]
    assert sorted(each[:4] for each in group) == [[str(rank), str(rank), "3", "3"] for rank in range(3)]
    (address,) = {each[4] for each in group}
    assert address.startswith("127.0.0.1:") and int(address.rpartition(":")[2]) > 1024
    ended = max(at for at, line in enumerate(lines) if line.startswith("end train:a"))
    assert all(lines.index(f"begin {name}") > ended for name in ("b", "c"))
    assert sorted(path.name for path in (tmp_path / "logs").glob("train*")) == [
        "train.log",
        "train.rank1.log",
        "train.rank2.log",
    ]


def test_one_process_that_fails_ends_the_others(task, tmp_path, monkeypatch):
    """And what it said is shown."""
    monkeypatch.setattr(local, "GRACE_S", 0.5)
    began, shown = time.monotonic(), io.StringIO()
    failed = run_tasks([task("train:a", "one-crashes"), task("b")], 2, 2, "cpu", Console(file=shown, width=500))
    assert [each.key for each in failed] == ["train:a"]
    assert time.monotonic() - began < 30 and order(tmp_path)[-1] == "end b"
    assert "train.rank1.log\n    error: what the second says\n" in shown.getvalue()
    ends = [each for each in restarts.read(task("train:a").journal) if each["event"] == "end"]
    assert [each["code"] for each in ends] == [7] * (restarts.MAX_RESTARTS + 1)


def test_a_training_has_gpus_of_its_own(task, tmp_path, monkeypatch):
    """Two of four, twice, whatever shares them; and never two processes on one."""
    monkeypatch.setattr(local, "gpus", lambda: ["3", "5", "7", "9"])
    tasks = [task(name, "group") for name in ("train:a", "train:b")]
    assert run_tasks(tasks, None, 2, "cuda", Console(quiet=True)) == []
    on = {line.split()[1]: line.split()[-1] for line in order(tmp_path) if line.startswith("begin")}
    assert sorted(",".join(on.values()).split(",")) == ["3", "5", "7", "9"]
    assert [local._apart(free) for free in (["3", "3"], ["3", "7", "3"], ["", ""], [])] == [1, 2, 2, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(task, tmp_path, number):
    """However the launcher ends, its tasks are told, so that they save, and end, too."""
    code = (
        "import json, sys; from pathlib import Path; from rich.console import Console\n"
        "from experiments.graph import Planned; from experiments.local import run_tasks\n"
        "from training.command_line import guarded\n"
        f"task = Planned('s', 'suite_test_job', ('s', 'sleep', {str(tmp_path)!r}), (), (), Path({str(tmp_path)!r}))\n"
        "sys.exit(guarded(lambda: len(run_tasks([task], 1, 1, 'cpu', Console(quiet=True)))))"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "asleep").exists())
    started = children(launcher.pid)
    started += [task for child in started for task in children(child)]
    assert len(started) == 3, "what counts resources, the process that tasks are forked from, and the task"
    launcher.send_signal(number)
    launcher.communicate(timeout=30)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in started))
    expected = {signal.SIGTERM: 75, signal.SIGKILL: -9}[number]
    assert launcher.returncode == expected
    assert order(tmp_path) == ["begin s", "SIGTERM s"]


def until(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def test_a_journal_survives_a_cut_line(tmp_path):
    file = tmp_path / "j.jsonl"
    restarts.append(file, "start", job="1", mark="step-0")
    with open(file, "a") as cut:
        cut.write('{"event": "sta')
    assert [event["job"] for event in restarts.read(file)] == ["1"]
    assert json.loads(file.read_text().splitlines()[0])["date"]
