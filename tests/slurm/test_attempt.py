"""A task as submitit runs it in a job: what its end, a signal and a lost start lead to. Only scontrol is a script."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from submitit.helpers import DelayedSubmission

from experiments import restarts
from experiments.task import Task
from slurm.attempt import Attempt

CHILD = """
import pathlib, signal, sys, time
how, folder = sys.argv[1], pathlib.Path(sys.argv[2])
done = len(list((folder / "checkpoints").glob("*"))) if (folder / "checkpoints").exists() else 0
def save(number, frame):
    (folder / f"checkpoints/step-{done + 1:08}").mkdir(parents=True)
    sys.exit(75)
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN if how == "deaf" else save)
if how == "advance":
    save(0, None)
print("error: as it was told")
(folder / "begun").write_text("")
time.sleep(0 if how.isdigit() else 60)
sys.exit(int(how))
"""


class Job:
    """A job whose starts are processes here; `requeued` counts the calls of `scontrol requeue`."""

    def __init__(self, folder: Path, how: str):
        self.folder, (self.bin, self.run) = folder, (folder / "bin", folder / "run")
        for path in (self.bin, self.run):
            path.mkdir()
        (folder / "child.py").write_text(CHILD)
        (self.bin / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {folder}/requeued\n')
        (self.bin / "scontrol").chmod(0o755)
        task = Task("train:fox-123", "child", (how, str(self.run)), (), (), self.run)
        submission = DelayedSubmission(Attempt(task, save_s=2.0))
        submission.set_timeout(60, 10**6)
        submission.dump(folder / "7_submitted.pkl")
        self.journal = task.journal

    def start(self) -> subprocess.Popen:
        environment = {
            **os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHONPATH": f"{self.folder}:{os.getcwd()}",
            "SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "submitit.core._submit", str(self.folder)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def begun(self) -> subprocess.Popen:
        (self.run / "begun").unlink(missing_ok=True)
        process = self.start()
        _until((self.run / "begun").exists)
        return process

    @property
    def requeued(self) -> int:
        path = self.folder / "requeued"
        calls = path.read_text().splitlines() if path.exists() else []
        assert set(calls) <= {"requeue 7"}
        return len(calls)

    @property
    def last(self) -> dict:
        return restarts.read(self.journal)[-1]


def _until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def test_done_is_done_and_a_mistake_is_final(tmp_path: Path) -> None:
    for code, ends in ((0, 0), (2, 1)):
        folder = tmp_path / str(code)
        folder.mkdir()
        job = Job(folder, str(code))
        assert job.start().wait(60) == ends and job.requeued == 0
        assert job.last["action"] == ("failed" if code else "done")


def test_crashes_are_tried_again_until_four_starts_made_no_progress(tmp_path: Path) -> None:
    job = Job(tmp_path, "1")
    codes = [job.start().wait(60) for _ in range(restarts.MAX_RESTARTS + 1)]
    assert codes == [restarts.REQUEUE] * restarts.MAX_RESTARTS + [1] and job.requeued == restarts.MAX_RESTARTS
    assert "given up after 4 starts" in job.last["reason"]


def test_progress_is_not_counted(tmp_path: Path) -> None:
    job = Job(tmp_path, "advance")
    assert [job.start().wait(60) for _ in range(6)] == [restarts.REQUEUE] * 6 and job.requeued == 6


def test_starts_that_are_cut_off_are_counted(tmp_path: Path) -> None:
    job = Job(tmp_path, "wait")
    for _ in range(restarts.MAX_RESTARTS + 1):
        process = job.begun()
        subprocess.run(["pkill", "-KILL", "-P", str(process.pid)])
        process.kill()
        process.wait()
    assert job.start().wait(60) == 1 and job.requeued == 0
    assert job.last["action"] == "failed" and "4 starts without progress" in job.last["reason"]


@pytest.mark.parametrize("how", ["wait", "deaf"])
def test_usr2_lets_the_task_save_and_requeues_the_job(tmp_path: Path, how: str) -> None:
    """A task that does not leave in time is killed, and goes on from its last checkpoint."""
    job = Job(tmp_path, how)
    process = job.begun()
    process.send_signal(signal.SIGUSR2)
    assert process.wait(60) == 255 and job.requeued == 1
    assert [job.last["code"], (job.run / "checkpoints").exists()] == ([75, True] if how == "wait" else [-9, False])
    assert not list(tmp_path.glob("*_result.pkl"))


def test_term_lets_the_task_save_and_leaves_the_job_to_slurm(tmp_path: Path) -> None:
    job = Job(tmp_path, "wait")
    process = job.begun()
    process.send_signal(signal.SIGTERM)
    _until(lambda: any(job.run.glob("checkpoints/*")))
    time.sleep(1)
    assert process.poll() is None and job.requeued == 0  # a job that was cancelled must not come back
    process.kill()
    process.wait()
