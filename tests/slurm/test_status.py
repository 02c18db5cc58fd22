"""Tests of what status tells, from records, journals and a queue: never less, and never more, than is so."""

import io
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from experiments import restarts
from slurm import client, efficiency
from slurm.__main__ import main
from slurm.client import QueuedJob
from slurm.epilogue import NEVER_BEGAN
from slurm.job import Batch, Job, Resources, Submission
from slurm.status import job_states, now, rows, summary, table, wide
from tests.slurm.fake import FakeJob, FakeSlurm

TRAIN, EVALUATE, DRAW = "train:fox-1", "evaluate:fox-1:aa", "draw:fig2:bb"


@pytest.fixture(autouse=True)
def _no_accounting(monkeypatch):
    monkeypatch.setattr(client, "accounted", lambda ids: {})


def submission(folder: Path, name: str = "one", ids: tuple[str, ...] = ("5", "6", "7"), user: str = "me") -> Submission:
    """A training, its evaluation and a drawing."""
    run = folder / "runs" / "tiny" / "fox-1"
    jobs, batches = {}, []
    for key, needs, job in zip((TRAIN, EVALUATE, DRAW), ((), (TRAIN,), (EVALUATE,)), ids, strict=False):
        kind = key.split(":")[0]
        makes = {"train": ["export"], "evaluate": ["evals/a.parquet", "evals/b.parquet"]}.get(kind, [])
        jobs[key] = Job(key, "", (), needs, tuple(run / path for path in makes), run, Resources(1, 1, 0, 1))
        batches.append(Batch({0: key}, logs=str(folder / f"{kind}-"), id=job))
    path = folder / "runs" / "tiny" / "plans" / "submissions" / f"{name}.json"
    found = Submission(path, user, str(folder), 3, jobs, batches, request={}, cluster={})
    found.save()
    assert Submission.read(path) == found
    return found


def queued(job: str, state: str, reason: str = "None", user: str = "me") -> dict[str, QueuedJob]:
    return {job: QueuedJob(job, state, reason, "n1" if state == "RUNNING" else "", user, "name", "comment")}


def note(item: Submission, key: str, event: str, job: str, **values: object) -> None:
    restarts.append(item.jobs[key].journal, event, job=job, **values)


def states(*submissions: Submission, **queue: dict) -> dict[str, tuple[str, str]]:
    jobs = {job_id: job for jobs in queue.values() for job_id, job in jobs.items()}
    return {state.job.kind: (state.state, state.error) for state in job_states(submissions, jobs)}


@pytest.mark.parametrize(("state", "reason"), [
    ("PENDING", "JobHeldUser"), ("PENDING", "JobHeldAdmin"), ("PENDING", "JobHoldMaxRequeue"), ("REQUEUE_HOLD", "None"),
    ("SPECIAL_EXIT", "None"), ("PENDING", "launch failed requeued held"),
])  # fmt: skip
def test_a_held_job_is_said_to_be_held_and_how_it_is_released(tmp_path, state, reason):
    found = states(submission(tmp_path), jobs=queued("5", state, reason))
    assert found["train"][0] == "held" and "scontrol release 5" in found["train"][1]


def test_a_job_that_waits_is_not_held(tmp_path):
    one = submission(tmp_path)
    assert states(one, jobs=queued("5", "PENDING", "Resources") | queued("6", "PENDING", "Dependency")) == {
        "train": ("pending", ""), "evaluate": ("waiting", ""), "draw": states(one)["draw"],
    }  # fmt: skip


def test_cancelled_jobs_are_so_after_slurm_has_forgotten_them(tmp_path, monkeypatch):
    one = submission(tmp_path)
    assert {state for state, _ in states(one).values()} == {"lost"}
    assert "forgotten job 5" in states(one)["train"][1]
    note(one, EVALUATE, "end", "6", code=0, action="cancelled", reason="cancelled by me")
    assert states(one)["evaluate"] == ("cancelled", "cancelled by me")
    monkeypatch.setattr(client, "accounted", lambda ids: {"5": "CANCELLED"})
    assert states(one)["train"] == ("cancelled", "SLURM says: cancelled")


def test_what_was_made_elsewhere_is_done(tmp_path):
    """All of it: SLURM and the journals know nothing of its end."""
    one = submission(tmp_path)
    made = [*one.jobs[TRAIN].makes, *one.jobs[EVALUATE].makes]
    for path, ended in zip(made, (["train"], ["train"], ["train", "evaluate"]), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        found = states(one)
        assert [kind for kind in found if found[kind] == ("done", "")] == ended
        assert {found[kind][0] for kind in found if kind not in ended} == {"lost"}


def test_only_the_present_error_is_shown(tmp_path):
    one = submission(tmp_path)
    note(one, TRAIN, "start", "5", mark="step-0")
    note(one, TRAIN, "end", "5", code=137, action="again", reason="killed by SIGKILL")
    assert states(one, jobs=queued("5", "PENDING", "BeginTime"))["train"] == ("requeued", "killed by SIGKILL")
    note(one, TRAIN, "start", "5", mark="step-0")
    (state, *_) = job_states([one], queued("5", "RUNNING"))
    assert (state.state, state.error, state.restarts, state.restarted) == ("running", "", 1, "killed by SIGKILL")
    note(one, TRAIN, "end", "5", code=0, action="done", reason="")
    assert states(one)["train"] == ("done", "")


def test_what_needs_a_failed_task_names_it_and_drawings_do_not(tmp_path):
    one = submission(tmp_path)
    note(one, TRAIN, "start", "5", mark="step-0")
    note(one, TRAIN, "end", "5", code=2, action="failed", reason="error: no such corpus")
    note(one, DRAW, "end", "7", code=0, action="done", reason="")
    found = states(one)
    assert found["train"] == ("failed", "error: no such corpus") and found["draw"] == (
        "done", "without fox-1, whose evaluation is missing",
    )  # fmt: skip
    assert found["evaluate"] == ("cancelled", "needs train fox-1, which failed: error: no such corpus")


def test_the_log_of_the_shell_is_named_where_the_task_never_began(tmp_path):
    one = submission(tmp_path)
    note(one, TRAIN, "start", "5", mark=NEVER_BEGAN)
    note(one, TRAIN, "end", "5", code=127, action="failed", reason="given up: the task never began: no such container [/x]")
    shown = io.StringIO()
    wide(Console(file=shown)).print(table(rows(job_states([one], {}))))
    (row,) = (line for line in shown.getvalue().splitlines() if "fox-1" in line)
    assert "no such container [/x]" in row and f"log: {tmp_path}/train-5.log" in row


def test_what_the_shell_said_is_told_where_not_even_the_epilogue_ran(tmp_path):
    one = submission(tmp_path)
    log = tmp_path / "train-5.log"
    for text, told in (
        ("slurmstepd: error: couldn't chdir\npython3: command not found\n", "python3: command not found"),
        ("--- job 5 on n1, restart 0, python /usr/bin/python3\n", "its log says nothing"),
        (None, f"its node cannot write {log}"),
    ):
        log.unlink(missing_ok=True)
        if text is not None:
            log.write_text(text)
        assert states(one, jobs=queued("5", "FAILED"))["train"] == ("failed", f"SLURM says: failed: {told}")


def test_a_preempted_job_that_could_not_save_is_said_to_go_on_by_resubmitting(tmp_path):
    found = states(submission(tmp_path), jobs=queued("5", "PREEMPTED"))["train"]
    assert found == (
        "failed",
        f"SLURM says: preempted; `python -m slurm resubmit` resumes it: its node cannot write {tmp_path}/train-5.log",
    )


@pytest.mark.parametrize(("state", "more"), [("OUT_OF_MEMORY", "memory"), ("TIMEOUT", "time")])
def test_an_evaluation_that_had_too_little_is_said_to_get_more(tmp_path, state, more):
    one = submission(tmp_path)
    note(one, EVALUATE, "start", "6", mark="step-0")
    said = states(one, jobs=queued("6", state))["evaluate"]
    words = state.lower().replace("_", " ")
    assert said == ("failed", f"SLURM says: {words}; `python -m slurm resubmit` asks for 1.5 times the {more}")


def test_later_submissions_replace_what_they_make_again(tmp_path):
    one, two = submission(tmp_path), submission(tmp_path, "two", ("8", "9", "10"))
    for item in (one, two):
        note(item, TRAIN, "end", item.job_ids()[TRAIN], code=2, action="failed", reason="broken")
    again = replace(two.jobs.pop(DRAW), key="draw:fig2:cc")
    two.jobs[again.key] = again
    two.batches[2] = replace(two.batches[2], keys={0: again.key})
    found = job_states([one, two], {})
    assert [(state.job.key, state.id) for state in found] == [(TRAIN, "8"), (EVALUATE, "9"), ("draw:fig2:cc", "10")]
    two.withdrawn = True
    assert {state.id for state in job_states([one, two], {})} == {"5", "6", "7"}


def test_part_of_an_evaluation_that_is_submitted_again_replaces_the_whole(tmp_path):
    one, two = submission(tmp_path), submission(tmp_path, "two", ("8", "9"))
    job = two.jobs.pop(EVALUATE)
    first, second = job.makes
    two.jobs["evaluate:fox-1:cc"] = replace(job, key="evaluate:fox-1:cc", makes=(second,))
    two.batches[1] = replace(two.batches[1], keys={0: "evaluate:fox-1:cc"})
    assert {EVALUATE, "evaluate:fox-1:cc"} <= {state.job.key for state in job_states([one, two], {})}
    first.parent.mkdir(parents=True)
    first.write_text("")
    assert EVALUATE not in {state.job.key for state in job_states([one, two], {})}


def test_a_run_shows_what_matters_and_the_sum_counts_runs(tmp_path):
    one = submission(tmp_path)
    found = rows(job_states([one], queued("5", "RUNNING") | queued("6", "PENDING", "JobHeldUser")))
    assert now(found[0]).job.kind == "evaluate" and summary(found) == "1 lost, 1 held"
    assert (
        summary(rows(job_states([one], queued("5", "RUNNING") | queued("6", "PENDING", "Dependency")))) == "1 lost, 1 running"
    )


def test_a_colleagues_jobs_are_seen_and_names_and_states_choose(tmp_path, monkeypatch, capsys):
    submission(tmp_path, user="ann")
    submission(tmp_path, "two", ())
    fake = FakeSlurm(tmp_path / "bin")
    fake.change(jobs=[vars(FakeJob(job, "name", "comment", "", state, user="ann")) for job, state in
                      (("5", "RUNNING"), ("6", "PENDING"), ("7", "PENDING"))])  # fmt: skip
    monkeypatch.setenv("PATH", f"{fake.folder}:/usr/bin:/bin")
    where = ["--runs-dir", str(tmp_path / "runs")]
    assert main(["status", *where]) == 0
    shown = capsys.readouterr().out
    assert "5 of ann" in shown and "1 running, 1 pending" in shown
    assert main(["status", "fox", "--state", "running", *where]) == 0
    shown = capsys.readouterr().out
    assert "fox-1" in shown and "fig2" not in shown
    assert main(["status", "--state", "failed,held", *where]) == 0 and "none" in capsys.readouterr().out
    for mistake, told in ((["--state", "broken"], "choose from done"), (["nothing"], "there are fig2, fox-1")):
        assert main(["status", *mistake, *where]) == 2
        assert told in capsys.readouterr().err
    assert main(["cancel", "fig2", *where]) == 0
    assert "cancelled 1 jobs" in capsys.readouterr().out
    assert {job.id: job.state for job in fake.jobs} == {"5": "RUNNING", "6": "PENDING", "7": "CANCELLED"}
    fake.change(jobs=[])
    main(["status", "fig2", *where])
    assert "cancelled by" in capsys.readouterr().out


def test_jobs_that_slurm_hides_are_not_lost_and_ones_own_are_cancelled_all_the_same(tmp_path, monkeypatch, capsys):
    """Both have submitted the same, so that the newest of each job is Ann's."""
    submission(tmp_path)
    ann = submission(tmp_path, "two", ("8", "9", "10"), user="ann")
    fake = FakeSlurm(tmp_path / "bin", config="PrivateData             = accounts,jobs", jobs=[
        vars(FakeJob(job, "name", "comment", "", "RUNNING", user=user))
        for user, ids in (("me", "567"), ("ann", "89")) for job in ids])  # fmt: skip
    monkeypatch.setenv("PATH", f"{fake.folder}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(client, "me", lambda: "me")
    where = ["--runs-dir", str(tmp_path / "runs")]
    assert main(["status", *where]) == 0
    shown = capsys.readouterr().out
    assert "2 hidden" in shown and "lost" not in shown
    assert main(["cancel", *where]) == 0
    shown = capsys.readouterr().out
    assert "cancelled 3 jobs" in shown and "SLURM hides the jobs of ann" in shown
    assert {job.id: job.state for job in fake.jobs} == dict.fromkeys("567", "CANCELLED") | dict.fromkeys("89", "RUNNING")
    note(ann, TRAIN, "end", "8", code=2, action="failed", reason="broken")
    main(["status", *where])
    assert "1 failed, 1 hidden" in capsys.readouterr().out


def test_a_job_whose_answer_came_too_late_is_shown_and_cancelled(tmp_path, monkeypatch, capsys):
    one = submission(tmp_path)
    late = FakeJob("55_3", one.job_name(0), one.mark(0), "")
    fake = FakeSlurm(tmp_path / "bin", jobs=[vars(FakeJob("5", one.job_name(0), one.mark(0), "")), vars(late)])
    monkeypatch.setenv("PATH", f"{fake.folder}:/usr/bin:/bin")
    where = ["--runs-dir", str(tmp_path / "runs")]
    main(["status", *where])
    assert "SLURM also has 55: not waited for, as sbatch answered too late" in capsys.readouterr().out
    assert main(["cancel", "fox", *where]) == 0
    assert {job.state for job in fake.jobs} == {"CANCELLED"}


def test_hours_asked_for_used_lost_and_waited(tmp_path, monkeypatch, capsys):
    """A training of 2 GPUs starts after half an hour, gets nowhere in 15 minutes, waits a quarter and trains for a half; its
    evaluation is cut off, begins again 15 minutes later, at once, and has run for 30 minutes."""
    one = submission(tmp_path, "20260101-120000-1")
    one.jobs = {key: replace(job, resources=Resources(1, 1, 2 if key == TRAIN else 1, 60)) for key, job in one.jobs.items()}
    one.save()
    stamp = datetime(2026, 1, 1, 12).astimezone()

    def at(minutes: int, key: str, event: str, mark: str, **values: object) -> None:
        note(one, key, event, one.job_ids()[key], mark=mark, **values)
        *before, last = one.jobs[key].journal.read_text().splitlines()
        last = json.dumps({**json.loads(last), "date": (stamp + timedelta(minutes=minutes)).isoformat()})
        one.jobs[key].journal.write_text("\n".join([*before, last]) + "\n")

    at(30, TRAIN, "start", "step-0")
    at(45, TRAIN, "end", "step-0", code=1, action="again", reason="")
    at(60, TRAIN, "start", "step-0")
    at(90, TRAIN, "end", "step-9", code=0, action="done", reason="")
    at(100, EVALUATE, "start", "0 bytes")
    at(115, EVALUATE, "start", "0 bytes")
    found = efficiency.hours([one], {"fox-1", "fig2"}, stamp + timedelta(minutes=145))
    assert found == {"train": efficiency.Hours(1, 4.0, 1.5, 0.5, 0.75), "evaluate": efficiency.Hours(1, 2.0, 0.75, 0.25, 1 / 6)}
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:/usr/bin:/bin")
    assert main(["efficiency", "fox", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert re.search(r"train +1 +4\.0 h +1\.5 h +0\.5 h +0\.8 h", capsys.readouterr().out)
