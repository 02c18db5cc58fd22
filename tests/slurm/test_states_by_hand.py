"""Each state of a job and of what SLURM says of it, each option that replaces ours, worked out by hand."""

from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest

from slurm import batch, client, status
from slurm.client import QueuedJob
from slurm.cluster import Cluster, KindSettings
from slurm.status import JobState
from tests.slurm.test_by_hand import job


def in_queue(state: str, reason: str = "None") -> QueuedJob:
    return QueuedJob("5_1", state, reason, "n1", "me", "name", "comment")


@pytest.mark.parametrize(("state", "reason", "starts", "found"), [
    ("RUNNING", "None", 1, ("running", "n1", "")), ("COMPLETING", "None", 0, ("running", "n1", "")),
    ("PENDING", "None", 0, ("pending", "", "")), ("PENDING", "None", 1, ("requeued", "", "")),
    ("PENDING", "Priority", 0, ("pending", "Priority", "")), ("PENDING", "Priority", 1, ("requeued", "Priority", "")),
    ("REQUEUED", "BeginTime", 1, ("requeued", "BeginTime", "")), ("PENDING", "Dependency", 0, ("waiting", "", "")),
    ("PENDING", "Dependency", 1, ("requeued", "", "")),
    ("PENDING", "DependencyNeverSatisfied", 0, ("waiting", "DependencyNeverSatisfied",
                                                "a job that it needs has failed: `scancel 5_1`, then resubmit")),
    *(("PENDING", reason, 0, ("pending", reason, f"asks for what SLURM never grants ({reason}): `python -m slurm cancel`, "
                                                 "fix the cluster file, then `run`"))
      for reason in ("PartitionTimeLimit", "PartitionConfig", "InvalidAccount", "QOSMaxWallDurationPerJobLimit")),
    ("PENDING", "QOSMaxJobsPerUserLimit", 0, ("pending", "QOSMaxJobsPerUserLimit", "")),  # others' end is enough
    ("PENDING", "job requeued in held state", 0, ("held", "", "held by SLURM (job requeued in held state): `scontrol release "
                                                              "5_1` releases it, or cancel it")),
])  # fmt: skip
def test_states_of_a_job_in_the_queue(state, reason, starts, found):
    assert status._queued_state(in_queue(state, reason), starts) == found


def test_a_held_job_is_one_that_waits():
    """Reasons are those of a job that is pending; of one that runs they are old."""
    held = [(state, reason) for state in ("PENDING", "RUNNING", "REQUEUE_HOLD", "SPECIAL_EXIT")
            for reason in ("None", "JobHeldUser", "user env retrieval failed requeued held")
            if in_queue(state, reason).held]  # fmt: skip
    assert held == [(state, reason) for state in ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT")
                    for reason in ("None", "JobHeldUser", "user env retrieval failed requeued held")
                    if (state, reason) != ("PENDING", "None")]  # fmt: skip


@pytest.mark.parametrize("state", [
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
    "REVOKED",
])  # fmt: skip
def test_a_job_that_has_ended_is_not_active(state):
    assert not in_queue(state).active and in_queue("COMPLETING").active and in_queue(state).array == "5"


def end(action: str, reason: str = "it crashed") -> list[dict]:
    return [{"action": "again", "reason": "earlier"}, {"action": action, "reason": reason}]


def blocking(state: str, error: str = "") -> JobState:
    return JobState(replace(job("train:a", 1), folder=Path("runs/fox")), "4", "me", state, error=error)


@pytest.mark.parametrize(("ends", "said", "before", "found"), [
    (end("failed"), "timeout", [], ("failed", "it crashed")), (end("failed"), "", ["failed"], ("failed", "it crashed")),
    (end("again"), "timeout", [], ("failed", "SLURM says: timeout, after: it crashed")),
    (end("again", ""), "timeout", [], ("failed", "SLURM says: timeout")),
    (end("cancelled"), "", [], ("cancelled", "it crashed")), (end("ended"), "", [], ("cancelled", "it crashed")),
    (end("cancelled"), "cancelled by 7", [], ("cancelled", "SLURM says: cancelled by 7")),
    (end("ended"), "timeout", [], ("cancelled", "SLURM says: timeout")),
    (end("again"), "", [], ("lost", "")), ([], "", [], ("lost", "")),
    ([], "node fail", [], ("failed", "SLURM says: node fail")),
    ([], "cancelled", [], ("cancelled", "SLURM says: cancelled")),
    ([], "cancelled", ["failed"], ("cancelled", "needs train:a, which failed: {}")),
    ([], "", ["cancelled", "failed"], ("cancelled", "needs train:a, which was cancelled: {}")),
    (end("again"), "", ["failed"], ("lost", "")),  # it has begun, so that what it needs was there
])  # fmt: skip
def test_states_of_a_job_that_has_ended(ends, said, before, found):
    for error in ("no disk", ""):
        wanted = found[1].format(error) if error else found[1].removesuffix(": {}")
        states = [blocking(state, error) for state in before]
        name = states[0].job.name if states else ""
        assert status._ended_state(ends, said, states) == (found[0], wanted.replace("train:a", name))


def test_what_failed_first_is_named_through_a_chain():
    chain = blocking("cancelled", "needs prepare c, which failed")
    assert status._ended_state([], "", [chain]) == ("cancelled", "needs prepare c, which failed")


def test_the_job_of_a_run_that_matters():
    """Whatever broke, then what is held, then what runs, then the first that is open, then the last."""
    order = [("done", "done"), ("done", "waiting", "pending"), ("waiting", "running"), ("running", "held"), ("held", "lost")]
    found = [status.now([blocking(state) for state in states]).state for states in order]
    assert found == ["done", "waiting", "running", "held", "lost"]
    for broken in ("failed", "cancelled", "lost"):
        assert status.now([blocking("running"), blocking(broken), blocking("held")]).state == broken
    members = [[blocking(state)] for state in ("running", "done", "lost", "done", "hidden", "held", "requeued", "pending")]
    assert status.summary(members) == "2 done, 1 lost, 1 running, 1 pending, 1 requeued, 1 held, 1 hidden"


def test_a_user_without_a_name_is_a_number(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 4_000_000_123)
    assert client.me() == "4000000123"


def test_accounted_states_are_one_word_each(monkeypatch):
    """Nothing is asked where there is nothing to ask for, or nobody."""
    asked = []

    def run(*command: str) -> CompletedProcess:
        asked.append(command[-1])
        said = "5|CANCELLED by 1000\n6_1|COMPLETED\n7|\nno line\n"
        return CompletedProcess(command, code, said if command[0] == "sacct" else "", "")

    code = 0
    monkeypatch.setattr(client, "_run", run)
    monkeypatch.setattr(client.shutil, "which", lambda name: f"/bin/{name}" if name == "sacct" else None)
    assert client.accounted(iter(["7", "5", "6_1"])) == {"5": "CANCELLED", "6_1": "COMPLETED"}
    assert client.accounted([]) == {} and asked == ["5,6_1,7"]
    code = 1
    assert client.accounted(["5"]) == {}
    monkeypatch.setattr(client.shutil, "which", lambda name: None)
    assert client.accounted(["5"]) == {} and len(asked) == 2


OURS = {"mem": "4G", "gpus-per-node": "2", "time": "1:00:00", "requeue": True}


@pytest.mark.parametrize(("given", "left"), [
    ({"mem-per-cpu": "1G"}, {"gpus-per-node", "time", "requeue"}),
    ({"mem-per-gpu": "1G"}, {"gpus-per-node", "time", "requeue"}),
    ({"mem": "1G"}, {"gpus-per-node", "time", "requeue"}), ({"gpus": 1}, {"mem", "time", "requeue"}),
    ({"gpus-per-task": 1}, {"mem", "time", "requeue"}), ({"gpus-per-socket": 1}, {"mem", "time", "requeue"}),
    ({"gpus-per-node": 1}, {"mem", "time", "requeue"}), ({"gres": "gpu:1"}, {"mem", "time", "requeue"}),
    ({"gres": "tmp:1G"}, {*OURS}), ({"requeue": False}, {"mem", "gpus-per-node", "time"}), ({"nice": 5}, {*OURS}),
])  # fmt: skip
def test_another_way_to_ask_replaces_ours(given, left):
    said = {name: value for name, value in given.items() if value is not False}
    assert batch._merged(OURS, given) == {name: OURS[name] for name in left} | said


@pytest.mark.parametrize(("given", "gres"), [
    ({"gres": "tmp:1G"}, "gpu:2,tmp:1G"), ({"gres": "gpu:a100:1"}, "gpu:a100:1"), ({"gpus": 1}, None), ({"nice": 5}, "gpu:2"),
    ({"gpus": 1, "gres": "tmp:1G"}, "gpu:2,tmp:1G"),
])  # fmt: skip
def test_generic_resources_stand_beside_the_gpus(given, gres):
    assert batch._merged({"gres": "gpu:2"}, given).get("gres") == gres


@pytest.mark.parametrize(("option", "kind", "count", "asked"), [
    ("gres", None, 2, {"gres": "gpu:2"}), ("gres", "h100", 2, {"gres": "gpu:h100:2"}),
    ("gpus-per-node", None, 1, {"gpus-per-node": "1"}), ("gpus-per-node", "h100", 1, {"gpus-per-node": "h100:1"}),
    ("gres", "h100", 0, {}), ("gpus-per-node", None, 0, {}),
])  # fmt: skip
def test_gpus_are_asked_for_as_the_cluster_names_them(option, kind, count, asked):
    cluster = Cluster(time_limit_hours=1, gpus_per_node=4, gpu_tflops=1.0, gpu_option=option)
    assert batch._gpus(count, KindSettings(gpu_type=kind), cluster) == asked


def test_words_of_a_batch_script():
    assert [batch._hours(minutes) for minutes in (1, 59, 60, 61, 1500)] == [
        "0:01:00",
        "0:59:00",
        "1:00:00",
        "1:01:00",
        "25:00:00",
    ]
    for throttle, array in ((None, "3,7-9"), (3, "3,7-9%3"), (4, "3,7-9"), (1, "3,7-9%1")):
        assert batch._array([3, 7, 8, 9], throttle) == array
    assert [batch._option("a", value) for value in (True, 1, "x y", "")] == ["--a", "--a=1", "--a='x y'", "--a=''"]


@pytest.mark.parametrize(("given", "python"), [
    ({}, "'/a b/python'"), ({"setup": ("module load x",)}, "python3"), ({"container": "run c"}, "python3"),
    ({"python": "py"}, "py"), ({"python": "py", "setup": ("x",), "container": "c"}, "py"),
])  # fmt: skip
def test_python_of_the_tasks(given, python, monkeypatch):
    monkeypatch.setattr(batch, "sys", SimpleNamespace(executable="/a b/python"))
    assert batch.task_python(Cluster(time_limit_hours=1, **given)) == python
