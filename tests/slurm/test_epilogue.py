"""Whether a job starts again, what the journal keeps, snapshots, and records of a submission that was cut off."""

import json
from pathlib import Path

import pytest

from slurm import journal
from slurm.client import QueuedJob
from slurm.epilogue import decide
from slurm.launcher import torchrun_variables
from slurm.records import active_jobs, read_submissions
from slurm.snapshot import code_files, snapshot
from training.provenance import git_state

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("code", "state", "fruitless", "action", "why"),
    [
        (0, "RUNNING", 9, "done", ""),
        (75, "RUNNING", 0, "requeue", "saved"),
        (75, "RUNNING", 4, "failed", "given up after 4 starts without progress"),
        (75, "TIMEOUT", 0, "requeue", "saved"),
        (75, "CANCELLED", 0, "ended", "cancelled"),
        (137, "RUNNING", 3, "requeue", "killed by SIGKILL"),
        (137, "RUNNING", 4, "failed", "killed by SIGKILL"),
        (1, "RUNNING", 1, "requeue", "exit code 1"),
        (2, "RUNNING", 0, "failed", ""),
        (3, "RUNNING", 0, "failed", ""),
        (130, "RUNNING", 0, "failed", "interrupted"),
        (143, "COMPLETING", 0, "ended", "completing"),
    ],
)
def test_what_becomes_of_a_job(code, state, fruitless, action, why):
    decided, reason = decide(code, state, fruitless, max_restarts=3)
    assert decided == action and why in reason


def test_starts_count_as_fruitless_until_one_gets_further(tmp_path):
    file, run = tmp_path / "slurm" / "train.jsonl", tmp_path / "run"
    (run / "checkpoints" / "step-00000005").mkdir(parents=True)
    old = journal.progress_mark(run)
    for job in ("1", "7", "7"):
        journal.append(file, "start", job=job, mark=old)
    assert journal.fruitless_starts(journal.read(file), "7", old) == 2
    (run / "checkpoints" / "step-00000010").mkdir()
    new = journal.progress_mark(run)
    assert journal.fruitless_starts(journal.read(file), "7", new) == 0
    journal.append(file, "start", job="7", mark=new)
    assert journal.fruitless_starts(journal.read(file), "7", new) == 1
    journal.append(file, "start", job="7", mark=old)
    assert journal.fruitless_starts(journal.read(file), "7", old) == 1
    (run / "evals").mkdir()
    (run / "evals" / "needle.partial.jsonl").write_text("{}\n")
    assert journal.progress_mark(run) != new
    with open(file, "a") as cut:
        cut.write('{"event": "sta')
    assert len(journal.read(file)) == 5


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


def test_jobs_are_known_even_if_their_submission_was_killed(tmp_path):
    """A submission that died between sbatch and its record: the job's comment says what it is."""
    nodes = {key: {"needs": [], "makes": []} for key in ("train:a", "train:b", "draw:c")}
    groups = [
        {"kind": "train", "keys": ["train:a", "train:b"], "job_id": None},
        {"kind": "draw", "keys": ["draw:c"], "job_id": None},
    ]
    (tmp_path / "one.json").write_text(json.dumps({"groups": groups, "nodes": nodes}))
    jobs = [QueuedJob("5_0", "RUNNING", "None", "n1", "fox:one:0"), QueuedJob("5_1", "FAILED", "None", "n1", "fox:one:0")]
    queue = {job.id: job for job in [*jobs, QueuedJob("6", "RUNNING", "None", "n1", "fox:other:0")]}
    assert {key: job for key, (job, _) in active_jobs(read_submissions(tmp_path, queue), queue).items()} == {"train:a": "5_0"}


def test_slurms_variables_become_those_of_torchrun(monkeypatch):
    for name, value in (("NTASKS", "16"), ("PROCID", "9"), ("LOCALID", "1"), ("JOB_ID", "41"), ("JOB_NODELIST", "gpu[03-04]")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert torchrun_variables() == {
        "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu03", "MASTER_PORT": "20041",
    }  # fmt: skip
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert torchrun_variables() == {}
