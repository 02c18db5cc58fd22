"""Tests of whether a job starts again, what its journal keeps, and snapshots of the code."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import restarts
from results.provenance import git_state
from slurm import client, epilogue, launcher
from slurm.epilogue import NEVER_BEGAN, Start, decide, ended, note_start
from slurm.job import Batch, Job, Resources, Submission
from slurm.snapshot import code_files, snapshot
from tests.slurm.fake import FakeSlurm

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("code", "state", "fruitless", "action", "why"),
    [
        (0, "COMPLETING", 9, "done", ""),
        (75, "RUNNING", 0, "again", "saved"),
        (75, "RUNNING", 4, "failed", "given up after 4 starts without progress"),
        (75, "TIMEOUT", 0, "again", "saved"),
        (124, "RUNNING", 0, "again", "did not exit in time"),
        (124, "TIMEOUT", 4, "failed", "did not exit in time"),
        (75, "PREEMPTED", 0, "again", "saved"),
        (75, "CANCELLED", 0, "ended", "cancelled"),
        (137, "RUNNING", 3, "again", "killed by SIGKILL"),
        (137, "RUNNING", 4, "failed", "killed by SIGKILL"),
        (1, "RUNNING", 1, "again", "exit code 1"),
        (2, "RUNNING", 0, "failed", ""),
        (3, "RUNNING", 0, "failed", ""),
        (130, "RUNNING", 0, "failed", "interrupted"),
        (143, "COMPLETING", 0, "ended", "completing"),
    ],
)
def test_what_becomes_of_a_job(code, state, fruitless, action, why):
    decided, reason = decide(code, state, fruitless, max_restarts=3)
    assert decided == action and why in reason


def job_of(folder: Path, key: str = "train:a") -> Job:
    return Job(key, "this", (), (), (folder / "export",), folder, Resources(1, 1, 0, 1))


def start_of(folder: Path, restart: int, *, withdrawn: bool = False) -> Start:
    return Start("7", restart, job_of(folder), folder / "shell-7.log", 3, withdrawn)


def test_a_job_whose_task_never_begins_is_given_up_and_says_why(tmp_path):
    """Also while another task of the same run makes progress."""
    (tmp_path / "shell-7.log").write_text("job 7 on n1\nbash: apptainer: command not found\n")
    for restart, code in enumerate((2, 127, 130, 127)):  # none of them is the task's own
        (tmp_path / "checkpoints" / f"step-0000000{restart}").mkdir(parents=True)
        action, reason = ended(start_of(tmp_path, restart), code, "RUNNING")
        assert (action == "again") == (restart < 3), reason
        assert NEVER_BEGAN in reason and reason.endswith("apptainer: command not found")
    assert reason.startswith("given up after 4 starts without progress: exit code 127")


def test_what_was_wrong_is_found_beside_what_slurm_says_of_it(tmp_path):
    said = ["slurmstepd: error: execve(): /nowhere/apptainer: No such file or directory",
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T00:08:49 DUE TO JOB REQUEUE ***",
            "srun: error: n1: task 0: Exited with exit code 2",
            "srun: launch/slurm: _step_signal: Terminating StepId=7.0"]  # fmt: skip
    for lines in (said, said[::-1]):
        (tmp_path / "log").write_text("\n".join(["job 7 on n1", *lines]))
        assert restarts.last_words(tmp_path / "log") == said[0]


def test_a_broken_node_is_told_in_the_words_of_the_process_that_saw_it(tmp_path):
    start = start_of(tmp_path, 0)
    note_start(start, restarts.progress_mark(tmp_path))
    start.job.log.parent.mkdir()
    start.job.log.write_text("--- job 7\n")
    start.job.log.with_suffix(".rank3.log").write_text("error: this node: cuda:3: 12 TFLOP/s\n")
    for rank, text, ago in ((1, "error: this node: of an earlier start", 60), (5, "error: this node: of the first", 90)):
        earlier = start.job.log.with_suffix(f".rank{rank}.log")
        earlier.write_text(text)
        os.utime(earlier, (time.time() - ago,) * 2)
    assert ended(start, restarts.BROKEN_NODE, "RUNNING") == ("again", "this node failed: cuda:3: 12 TFLOP/s")


def test_starts_with_and_without_their_task_count_together(tmp_path):
    actions = []
    for restart in range(8):
        start = start_of(tmp_path, restart)
        if restart % 2:
            note_start(start, restarts.progress_mark(tmp_path))
        actions.append(ended(start, 1, "RUNNING")[0])
    assert actions[:4] == ["again"] * 3 + ["failed"]


def test_progress_sets_the_count_back(tmp_path):
    for restart in range(6):
        start = start_of(tmp_path, restart)
        note_start(start, restarts.progress_mark(tmp_path))
        (tmp_path / "checkpoints" / f"step-0000000{restart}").mkdir(parents=True)
        assert ended(start, 75, "RUNNING")[0] == "again"


@pytest.mark.parametrize(("withdrawn", "starts", "word"), [(True, 1, "withdrawn"), (False, 5, "given up")])
def test_a_job_that_is_not_wanted_leaves_for_good(tmp_path, monkeypatch, capfd, withdrawn, starts, word):
    start = start_of(tmp_path, starts - 1, withdrawn=withdrawn)
    monkeypatch.setattr(Start, "own", classmethod(lambda *_: start))
    monkeypatch.setattr("sys.argv", ["launcher", "record", "0"])
    monkeypatch.setattr(launcher, "_redirect", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    for _ in range(starts - 1):
        note_start(start, restarts.progress_mark(tmp_path))
    with pytest.raises(SystemExit) as left:
        launcher.main()
    assert left.value.code == restarts.GIVEN_UP and word in capfd.readouterr().err
    assert ended(start, restarts.GIVEN_UP, "RUNNING")[0] == "failed"


def test_a_job_finds_itself_in_its_submission(tmp_path, monkeypatch):
    jobs = {key: job_of(tmp_path, key) for key in ("train:a", "train:b", "draw:c")}
    batches = [Batch({3: "train:a", 5: "train:b"}, logs="/x/0-"), Batch({0: "draw:c"}, logs="/x/1-")]
    submission = Submission(tmp_path / "one.json", "me", "/", 2, jobs, batches, request={}, cluster={})
    submission.save()
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    start = Start.own(submission.path, 1)
    assert start.job == jobs["draw:c"] and str(start.shell_log) == "/x/1-41.log"
    assert not start.withdrawn, "it began before sbatch's answer was noted"
    submission.change(1, id="39")  # sbatch was called again, and then this one's answer came
    assert Start.own(submission.path, 1).withdrawn
    submission.change(1, id="41")
    assert not Start.own(submission.path, 1).withdrawn
    for name, value in (("ARRAY_JOB_ID", "40"), ("ARRAY_TASK_ID", "5"), ("RESTART_COUNT", "2")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    start = Start.own(submission.path, 0)
    assert (start.id, start.restart, start.job, start.max_restarts) == ("40_5", 2, jobs["train:b"], 2)
    assert str(start.shell_log) == "/x/0-40_5.log"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
@pytest.mark.parametrize(("ending", "code"), [("sys.exit(75)", 75), ("sys.exit(2)", 2), ("1 / 0", 1), ("pass", 0)])
def test_an_exit_code_survives_a_signal_during_shutdown(tmp_path, ending, code, number):
    """srun ends the other processes of a training while they leave."""
    (tmp_path / "its.py").write_text(f"""
import builtins, os, sys, time
class Slow:
    def __del__(self, mkdir=os.mkdir, sleep=time.sleep):
        mkdir({str(tmp_path / "leaving")!r})
        sleep(1)
builtins.slow = Slow()
{ending}
""")
    job = Job("train:a", "its", (), (), (), tmp_path, Resources(1, 1, 0, 1))
    submission = Submission(tmp_path / "one.json", "me", "/", 2, {job.key: job}, [Batch({0: job.key}, logs="/x/0-")],
                            request={}, cluster={})  # fmt: skip
    submission.save()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "SLURM_JOB_ID": "7"}
    command = [sys.executable, "-m", "slurm.launcher", str(submission.path), "0"]
    with subprocess.Popen(command, env=environment) as process:
        while not (tmp_path / "leaving").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
    assert process.returncode == code


def test_a_record_of_another_version_is_an_error_of_one_line(tmp_path):
    for text in ("{", "{}", "[]", json.dumps({"jobs": {"a": {}}, "batches": []})):
        (tmp_path / "one.json").write_text(text)
        with pytest.raises(ValueError, match=r"one.json is damaged or of another version .*; move it away[^\n]*$"):
            Submission.read(tmp_path / "one.json")


def test_a_requeue_that_slurm_refuses_is_noted(tmp_path, monkeypatch):
    start = start_of(tmp_path, 0)
    monkeypatch.setattr(Start, "own", classmethod(lambda *_: start))
    monkeypatch.setattr(epilogue.client, "state", lambda *_: "RUNNING")
    monkeypatch.setattr(epilogue.client, "requeue", lambda *_: "Job/step already completing or completed")
    monkeypatch.setattr("sys.argv", ["epilogue", "record", "0", "75"])
    epilogue.main()
    last = restarts.read(start.job.journal)[-1]
    assert (last["action"], last["reason"]) == ("failed", "Job/step already completing or completed")


@pytest.mark.parametrize(("made", "state", "action"), [
    (True, "RUNNING", "done"), (False, "RUNNING", "again"), (False, "NODE_FAIL", "ended"), (False, "PENDING", "ended"),
])  # fmt: skip
def test_a_task_that_srun_gave_up_is_not_done(tmp_path, monkeypatch, made, state, action):
    start, requeued = start_of(tmp_path, 0), []
    note_start(start, restarts.progress_mark(tmp_path))
    if made:
        (tmp_path / "export").mkdir()
    monkeypatch.setattr(Start, "own", classmethod(lambda *_: start))
    monkeypatch.setattr(epilogue.client, "state", lambda *_: state)
    monkeypatch.setattr(epilogue.client, "requeue", requeued.append)
    monkeypatch.setattr("sys.argv", ["epilogue", "record", "0", "0"])
    assert epilogue.main() == (0 if made else 1)
    assert restarts.read(start.job.journal)[-1]["action"] == action and requeued == (["7"] if action == "again" else [])


def test_equal_code_is_one_snapshot_and_a_change_is_another(tmp_path):
    checkout = tmp_path / "checkout"
    for path in code_files(ROOT):
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_bytes((ROOT / path).read_bytes())
    (checkout / "results" / "tiny").mkdir()
    (checkout / "results" / "tiny" / "rows.parquet").write_bytes(b"1")
    first = snapshot(tmp_path / "snapshots", checkout)
    (checkout / "results" / "tiny" / "rows.parquet").write_bytes(b"2")
    assert snapshot(tmp_path / "snapshots", checkout) == first
    assert (first / "training" / "loop.py").read_bytes() == (ROOT / "training" / "loop.py").read_bytes()
    assert not (first / "results" / "tiny").exists() and not list(first.rglob("__pycache__"))
    with open(checkout / "training" / "loop.py", "a") as file:
        file.write("# changed\n")
    second = snapshot(tmp_path / "snapshots", checkout)
    assert second != first and (second / "training" / "loop.py").read_text().endswith("# changed\n")
    assert not list((tmp_path / "snapshots").glob(".partial*"))
    (first / "snapshot.json").write_text(json.dumps({"git_sha": "abc", "git_dirty": True}))
    assert git_state(first) == {"git_sha": "abc", "git_dirty": True}


def test_tasks_of_a_large_job_meet_as_those_of_torchrun(monkeypatch):
    given = {"NTASKS": "16", "JOB_NUM_NODES": "5", "PROCID": "9", "LOCALID": "1", "JOB_ID": "41", "ARRAY_JOB_ID": "40",
             "ARRAY_TASK_ID": "1", "JOB_NODELIST": "gpu[007-010],x3"}  # fmt: skip
    monkeypatch.setattr("os.environ", {f"SLURM_{name}": value for name, value in given.items()} | {"RANK": "3"})
    launcher.meet()
    found = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")}
    assert found == {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu007"}
    port = os.environ.pop("MASTER_PORT")
    os.environ["SLURM_PROCID"] = "10"
    launcher.meet()
    assert os.environ["MASTER_PORT"] == port and 1024 < int(port) < 65536  # the same for every task
    monkeypatch.setattr("os.environ", {"SLURM_NTASKS": "1"})
    launcher.meet()
    assert os.environ == {"SLURM_NTASKS": "1"}


@pytest.mark.parametrize(("preempted", "state"), [
    ("2026-11-24T10:00:00", "PREEMPTED"), ("None", "COMPLETING"), ("2026-11-24T08:00:00", "COMPLETING"),  # at an earlier start
])  # fmt: skip
def test_a_job_that_is_being_cancelled_is_known_to_be_preempted(tmp_path, monkeypatch, preempted, state):
    said = f"JobId=7 JobState=COMPLETING StartTime=2026-11-24T09:00:00 PreemptEligibleTime=2026 PreemptTime={preempted}"
    FakeSlurm(tmp_path / "bin", config=said)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    assert client.state("7") == state


SRUN = "srun: error: n1: task 0: Exited with exit code 1\n"


@pytest.mark.parametrize(("log", "nodes", "node"), [
    (f"--- job 7\n{SRUN}--- job 7 on n[2-4]\nsrun: error: n3: tasks 4-7: Killed\nsrun: error: n2: task 0\n", 4, "n3"),
    ("--- job 7 on n[1-4]\nsrun: error: n[1-4]: tasks 0-31: Exited\n", 4, None),
    (f"{SRUN}--- job 7 on n8\nsetup failed\n", 1, "n8"),
    (None, 1, "n8"),
])  # fmt: skip
def test_the_node_of_a_crash_is_the_first_that_srun_names(tmp_path, monkeypatch, log, nodes, node):
    start = start_of(tmp_path, 1)
    monkeypatch.setenv("SLURMD_NODENAME", "n8")
    if log is not None:
        start.shell_log.write_text(log)
    job = replace(start.job, resources=Resources(nodes, 1, 0, 1))
    assert epilogue.broken_node(replace(start, job=job)) == node


@pytest.mark.parametrize(("excluded", "node", "needed", "wanted"), [
    ("(null)", "n1", 1, "n1"),
    ("n2", "n1", 1, "n1,n2"),
    ("n2", "n1", 2, None),  # n3 alone would be left; n4 is down, n5 of another make
    ("(null)", "n5", 1, None),
    ("(null)", "n9", 1, None),
])  # fmt: skip
def test_a_node_is_excluded_where_enough_of_its_make_are_left(tmp_path, monkeypatch, excluded, node, needed, wanted):
    said = {
        "show job": f"JobId=7 JobState=PENDING ExcNodeList={excluded} Features=(null)",
        "show hostnames": excluded,
        "sinfo": "n1 idle 8 99 gpu:8\nn2 mixed 8 99 gpu:8\nn3 allocated 8 99 gpu:8\nn4 drained 8 99 gpu:8\nn5 idle 8 99 (null)",
    }

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        words = " ".join(command)
        return subprocess.CompletedProcess(command, 0, next((text for name, text in said.items() if name in words), ""), "")

    monkeypatch.setattr(client, "_run", run)
    assert client.without("7", node, needed) == wanted


@pytest.mark.parametrize(
    ("code", "state", "left"),
    [(137, "RUNNING", True), (76, "RUNNING", True), (75, "RUNNING", False), (143, "PREEMPTED", False)],
)
def test_only_a_crash_makes_a_job_leave_its_node(tmp_path, monkeypatch, code, state, left):
    start, asked = start_of(tmp_path, 0), []
    note_start(start, restarts.progress_mark(tmp_path))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(Start, "own", classmethod(lambda *_: start))
    monkeypatch.setattr(client, "state", lambda *_: state)
    monkeypatch.setattr(client, "requeue", lambda *_: None)
    monkeypatch.setattr(client, "without", lambda *given: ",".join(map(str, given)))
    monkeypatch.setattr(client, "avoid", lambda *given: asked.append(given) or True)
    monkeypatch.setattr("sys.argv", ["epilogue", "record", "0", str(code)])
    epilogue.main()
    assert asked == ([("7", "7,n1,1")] if left else [])
    assert (restarts.read(start.job.journal)[-1]["event"] == "excluded") == left
