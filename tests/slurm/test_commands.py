"""Every command that is given to SLURM, word for word, and what is made of every answer."""

import io
import os
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from slurm import client, submit
from slurm.client import ForNow, NoArrays, QueuedJob, Refused, TooMany, Unclear
from slurm.cluster import Cluster
from slurm.job import Batch, Job, Resources, Submission, adopt, find, users


@pytest.fixture
def slurm(monkeypatch):
    """Answers by the first words of a command: (exit code, stdout, stderr); and all that was asked."""
    asked: list[str] = []
    answers: dict[str, tuple[int, str, str]] = {}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        asked.append(" ".join(command))
        found = next((answer for words, answer in answers.items() if asked[-1].startswith(words)), (0, "", ""))
        return subprocess.CompletedProcess(command, *found)

    monkeypatch.setattr(client, "_run", run)
    monkeypatch.setattr(client, "me", lambda: "me")
    monkeypatch.setattr(client.time, "sleep", lambda seconds: None)
    run.asked, run.answers = asked, answers
    return run


@pytest.mark.parametrize(("code", "out", "err", "error", "told"), [
    (0, "7\n", "", None, "7"), (0, "8;north\n", "", None, "8"), (0, "hello 5\n 6\n7\n", "", None, "7"),
    (1, "7\n", "", Unclear, "exit code 1, '7'"), (0, "hello\n", "", Unclear, "exit code 0, 'hello'"),
    (1, "", "noise\nsbatch: error: one.\nsbatch: error: two.\n", Unclear, "one; two"),
    (1, "", "first\n\n last. \n", Unclear, "last"),
    (1, "", "sbatch: error: Invalid job array specification", NoArrays, ""), (1, "", "Job array index too large", NoArrays, ""),
    *((1, "", f"sbatch: error: {words}", TooMany, words) for words in client._LIMITS),
    *((1, "", f"sbatch: error: x {words} y", ForNow, f"x {words} y") for words in client._UNREACHABLE),
    *((1, "", f"sbatch: error: {words}", Refused, words) for words in client._FOR_GOOD),
    (1, "", "QOSMaxSubmitJobPerUserLimit", TooMany, ""), (1, "", "AssocMaxSubmitJobLimit", TooMany, ""),
    (1, "", "QOSMaxWallDurationPerJobLimit (job submit limit)", Refused, ""), (1, "", "AssocGrpNodeLimit", Refused, ""),
    (1, "", "Invalid: timed out", ForNow, ""), (1, "", "Invalid: MaxSubmit", TooMany, ""),
])  # fmt: skip
def test_what_sbatch_says_is_an_id_or_an_error_of_its_kind(slurm, code, out, err, error, told):
    slurm.answers["sbatch"] = (code, out, err)
    if error is None:
        assert client.sbatch("a.sh") == told
    else:
        with pytest.raises(error) as met:
            client.sbatch("a.sh")
        assert type(met.value) is error and str(met.value) == (told or err.replace("sbatch: error: ", ""))
    assert slurm.asked == ["sbatch --parsable a.sh"]


def test_jobs_of_this_user_and_of_others_are_asked_for(slurm):
    slurm.answers["squeue"] = (0, "5|RUNNING|None|n[1-2]|me|fox|c|d\n\nbroken|line\n5_3|PENDING|Priority||ann|a|\n", "")
    found = client.queue()
    assert found == {"5": QueuedJob("5", "RUNNING", "None", "n[1-2]", "me", "fox", "c|d"),
                     "5_3": QueuedJob("5_3", "PENDING", "Priority", "", "ann", "a", "")}  # fmt: skip
    client.queue({"zoe", "ann"})
    rest = "--noheader --array --states=all --format=%i|%T|%r|%N|%u|%j|%k"
    assert slurm.asked == [f"squeue --me {rest}", f"squeue --user ann,me,zoe {rest}"]
    slurm.answers["squeue"] = (1, "", "a\nslurm_load_jobs error: down\n")
    with pytest.raises(
        ValueError, match=r"^SLURM does not answer: slurm_load_jobs error: down; try again when `squeue` works.$"
    ):
        client.queue()


@pytest.mark.parametrize(("state", "reason", "active", "held"), [
    *((state, "None", False, False) for state in sorted(client.ENDED)), ("RUNNING", "None", True, False),
    *((state, "None", True, True) for state in sorted(client.HELD_STATES)), ("RUNNING", "JobHeldUser", True, False),
    *(("PENDING", reason, True, True) for reason in (*sorted(client.HELD_REASONS), "launch failed requeued held")),
    ("PENDING", "Resources", True, False), ("COMPLETING", "None", True, False), ("REQUEUED", "None", True, False),
])  # fmt: skip
def test_which_jobs_are_active_and_which_held(state, reason, active, held):
    job = QueuedJob("5_3", state, reason, "", "me", "", "")
    assert (job.active, job.held, job.array) == (active, held, "5")


@pytest.mark.parametrize(("uid", "config", "hidden"), [
    (1000, "PrivateData = accounts,jobs", {"zoe"}), (1000, "PrivateData=jobs,usage", {"zoe"}), (0, "PrivateData=jobs", set()),
    (1000, "PrivateData = usage", set()), (1000, "x\nPrivateData = none\nOther = jobs", set()),
    (1000, "PrivateData=jobsx", set()),
])  # fmt: skip
def test_users_whose_jobs_are_hidden(slurm, monkeypatch, uid, config, hidden):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    slurm.answers["scontrol show config"] = (0, config, "")
    queue = {"5": QueuedJob("5", "RUNNING", "", "", "ann", "", "")}
    assert client.unseen({"ann", "zoe"}, queue) == hidden and client.unseen({"ann"}, queue) == set()
    assert slurm.asked == ["scontrol show config"] * (uid > 0)


def test_partitions_that_cancel_without_grace(slurm):
    parts = [
        ("a", "CANCEL", "0", "YES"),
        ("b", "CANCEL", "0", "NO"),
        ("c", "CANCEL", "9", "YES"),
        ("d", "REQUEUE", "0", "YES"),
        ("e", "CANCEL", "0", "NO"),
    ]
    lines = [
        f"PartitionName={name} PreemptMode={mode} GraceTime={grace} Default={default}" for name, mode, grace, default in parts
    ]
    slurm.answers["scontrol show partition --oneliner"] = (0, "\n".join([*lines, "PreemptMode=CANCEL"]), "")
    for asked, found in (({None}, ["a"]), ({"b,c,d"}, ["b"]), ({None, "e"}, ["a", "e"]), ({"c"}, []), (set(), [])):
        assert client.without_grace(asked) == found, asked


def test_accounting_is_asked_for_what_the_controller_has_forgotten(slurm, monkeypatch):
    monkeypatch.setattr(client.shutil, "which", lambda name: name)
    slurm.answers["sacct"] = (0, "5|COMPLETED\n6_1|CANCELLED by 1000\n7|\n8\n", "")
    assert client.accounted(["6_1", "5"]) == {"5": "COMPLETED", "6_1": "CANCELLED"} and client.accounted([]) == {}
    assert slurm.asked == ["sacct -n --parsable2 --allocations --array --format=JobID,State --jobs 5,6_1"]
    slurm.answers["sacct"] = (1, "5|COMPLETED\n", "")
    assert client.accounted(["5"]) == {}
    monkeypatch.setattr(client.shutil, "which", lambda name: None)
    assert client.accounted(["5"]) == {} and len(slurm.asked) == 2
    with pytest.raises(
        ValueError, match=r"^sbatch, srun, squeue, scontrol, scancel not found: SLURM's commands are needed; run this"
    ):
        client.require_slurm()


@pytest.mark.parametrize(("said", "state"), [
    ("", "UNKNOWN"), ("JobState=RUNNING StartTime=2026-01-02", "RUNNING"),
    ("JobState=RUNNING StartTime=2026-01-02 PreemptTime=None", "RUNNING"),
    ("JobState=RUNNING StartTime=2026-01-02 PreemptTime=2026-01-02", "PREEMPTED"),
    ("JobState=RUNNING StartTime=2026-01-02 PreemptTime=2026-01-03", "PREEMPTED"),
    ("JobState=RUNNING StartTime=2026-01-02 PreemptTime=2026-01-01", "RUNNING"),
])  # fmt: skip
def test_the_state_of_one_job(slurm, said, state):
    slurm.answers["scontrol show job --oneliner 7"] = (0, said, "")
    assert client.state("7") == state


@pytest.mark.parametrize(("code", "err", "told"), [
    (0, "a warning", None), (1, "one\ntwo\n", "two"), (3, "", "exit code 3"),
])  # fmt: skip
def test_what_slurm_says_of_a_requeue_and_of_a_node_to_avoid(slurm, code, err, told):
    slurm.answers["scontrol"] = (code, "", err)
    assert client.requeue("7_1") == told and client.avoid("7_1", "n1,n2") is (code == 0)
    assert slurm.asked == ["scontrol requeue 7_1", "scontrol update JobId=7_1 ExcNodeList=n1,n2"]


def test_nodes_are_asked_for_in_the_jobs_partition(slurm, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_PARTITION", "gpu")
    slurm.answers["scontrol show job"] = (0, "JobId=7 ExcNodeList=n[2-3]", "")
    slurm.answers["scontrol show hostnames n[2-3]"] = (0, "n2\nn3\n", "")
    slurm.answers["sinfo"] = (0, "".join(f"n{i} idle 8 9 gpu:4\n" for i in range(1, 7)), "")
    assert client.without("7", "n1", 3) == "n1,n2,n3" and client.without("7", "n1", 4) is None
    assert slurm.asked[2] == "sinfo --noheader --Node --partition=gpu --format=%N %T %c %m %G"
    for state in ("mixed", "allocated", "completing", "drained", "down", "reserved"):
        slurm.answers["sinfo"] = (0, f"n1 down 8 9 g\nn5 {state} 8 9 g\nn6 idle 8 9 h\n", "")
        assert (
            (client.without("7", "n1", 1) is not None)
            == (state in client.SOUND)
            == (state in ("mixed", "allocated", "completing"))
        )


def test_jobs_are_cancelled_together(slurm):
    client.cancel([])
    assert slurm.asked == []
    client.cancel(["9", "5_10", "5_2", "5_3", "7_1", "7"])
    assert slurm.asked == ["scancel 5_[2-3,10] 7 9"]
    slurm.answers["scancel"] = (1, "", "scancel: error: Kill job error on job id 9: Invalid job id specified")
    client.cancel(["9"])
    slurm.answers["scancel"] = (1, "", "x\nAccess denied")
    with pytest.raises(ValueError, match=r"^scancel 8 9 failed: Access denied$"):
        client.cancel(["9", "8"])


@pytest.mark.parametrize(("err", "calls"), [("Unable to contact slurm controller", 4), ("Access denied", 1), ("", 1)])
def test_a_controller_that_is_down_is_waited_for(slurm, monkeypatch, err, calls):
    """Asked again every two seconds until the patience is over; other errors are final."""
    now = [0.0]
    monkeypatch.setattr(client.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(client.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    slurm.answers["scontrol"] = (1, "", err)
    assert client._patiently(5, "scontrol", "x").returncode == 1
    assert len(slurm.asked) == calls and now[0] == 2 * (calls - 1)
    monkeypatch.setattr(client, "WAIT_S", 5)
    assert client.requeue("7") and len(slurm.asked) == 2 * calls


def test_commands_get_what_says_which_slurm_is_meant_and_a_minute(monkeypatch):
    given = {"SLURM_CONF": "c", "SLURM_CLUSTERS": "d", "SLURM_JWT": "e", "SLURM_NTASKS": "2", "SBATCH_QOS": "x",
         "SQUEUE_ALL": "1",
             "SACCT_X": "1", "SCANCEL_X": "1", "HOME": "h"}  # fmt: skip
    monkeypatch.setattr(client.os, "environ", given)
    how = {}

    def run(command: tuple[str, ...], **options: object) -> subprocess.CompletedProcess[str]:
        how.update(options)
        if command[0] == "slow":
            raise subprocess.TimeoutExpired(command, 60)
        if command[0] == "none":
            raise FileNotFoundError(2, "No such file")
        return subprocess.CompletedProcess(command, 0, "out", "")

    monkeypatch.setattr(client.subprocess, "run", run)
    assert client._run("sbatch").stdout == "out"
    assert how["env"] == {name: given[name] for name in ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "HOME")}
    assert (how["timeout"], how["check"], how["text"], how["capture_output"]) == (60, False, True, True)
    for command, said in (("slow", "slow timed out"), ("none", "none: No such file")):
        done = client._run(command)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def entry(folder: Path, keys: dict[int, str], **given: object) -> Submission:
    jobs = {key: Job(key, "", (), (), (), folder, Resources(1, 1, 0, 1)) for key in keys.values()}
    return Submission(folder / "20260101-000000-1.json", "ann", "/", 3, jobs, [Batch(keys, **given)], {}, {})


@pytest.mark.parametrize(("id", "withdrawn", "keys", "state", "adopted", "surplus"), [
    (None, False, True, "PENDING", "5", {"6"}), (None, False, True, "COMPLETED", "5", set()),
    ("6", False, True, "PENDING", "6", {"5"}),
    ("7", False, True, "RUNNING", "7", {"5", "6"}), (None, True, True, "RUNNING", None, {"5", "6"}),
    (None, True, True, "FAILED", None, set()), (None, False, False, "RUNNING", None, {"5", "6"}),
    ("5", True, True, "RUNNING", "5", {"5", "6"}),
])  # fmt: skip
def test_jobs_without_an_answer_are_adopted_once(tmp_path, id, withdrawn, keys, state, adopted, surplus):
    """The oldest, whatever the order of the queue; by name or by comment. Written down only where that is asked for."""
    one = entry(tmp_path, {0: "train:a", 1: "train:b"}, id=id)
    one.withdrawn = withdrawn
    mark = one.mark(0)
    if not keys:
        one.batches = [Batch({}, id=id)]
    assert mark == ".20260101-000000-1.0" and entry(tmp_path, {0: "x:a b"}).job_name(0) == f"fox-x-a-b{mark}"
    queue = {job: QueuedJob(job, state, "", "", "ann", *names) for job, names in
             (("6_0", ("n", f"fox{mark}")), ("5_0", (f"fox{mark}", "c")), ("4", ("n", "c")),
             ("3", (f"{mark}0", f"{mark}1")))}  # fmt: skip
    assert [job.id for job in find(one, 0, queue)] == ["6_0", "5_0"]
    assert adopt([one], queue) == surplus and one.batches[0].id == adopted and not one.path.exists()
    again = entry(tmp_path, {0: "train:a", 1: "train:b"}, id=id)
    adopt([again], queue, save=True)
    assert again.path.exists() == (id is None)


def test_names_ids_and_logs_of_jobs(tmp_path, monkeypatch):
    size = Resources(3, 4, 2, 60)
    assert (size.tasks, size.gpus) == (12, 6)
    two = entry(tmp_path, {4: "train:b", 2: "train:a"}, id="5", logs="/l/0-")
    two.batches.append(Batch({0: "train:a"}, logs="/l/1-", id="6"))
    assert two.job_name(0) == f"fox-train{two.mark(0)}" and two.job_name(1) == f"fox-train-a{two.mark(1)}"
    assert two.job_ids() == {"train:b": "5_4", "train:a": "6"} and Batch({0: "train:a"}).ids() == {}
    assert two.shell_log("train:a") == Path("/l/1-6.log") and two.shell_log("train:b") == Path("/l/0-5_4.log")
    assert two.shell_log("train:c") is None
    monkeypatch.setattr(client, "me", lambda: "me")
    assert users([two]) == {"ann"}
    monkeypatch.setattr(client, "me", lambda: "ann")
    assert users([two]) == set()


MINUTE = [1, 2, 4, 8, 15, 30]
BUSY = {"1": QueuedJob("1", "RUNNING", "", "", "me", "", "")}
DONE = {"1": QueuedJob("1", "COMPLETED", "", "", "me", "", "")}


@pytest.mark.parametrize(("answers", "room", "queue", "became", "pauses"), [
    (["9"], False, BUSY, "9", []), ([ForNow, "9"], False, BUSY, "9", [1]),
    ([ForNow] * 5 + ["9"], False, {}, "9", [1, 2, 4, 8, 15]),
    ([ForNow] * 99, False, BUSY, ForNow, MINUTE), ([TooMany, "9"], True, BUSY, "9", [1]),
    ([TooMany, "9"], False, BUSY, TooMany, []),
    ([TooMany, "9"], True, DONE, Refused, [1]), ([Unclear] * 5 + ["9"], False, {}, "9", [1, 2, 4, 8, 15]),
    ([Refused], True, BUSY, Refused, []),
    ([NoArrays], True, BUSY, NoArrays, []), ([ForNow, "9"], False, "made", "77", [1]),
    ([ForNow, "9"], False, None, ForNow, MINUTE),
])  # fmt: skip
def test_sbatch_is_tried_with_patience_and_never_twice_for_one_job(tmp_path, monkeypatch, answers, room, queue, became, pauses):
    """A minute of patience. Before each further try the queue tells whether the job was made."""
    one, now, left, waited = entry(tmp_path, {0: "train:a"}), [0.0], list(answers), []
    if queue == "made":
        queue = {"77_0": QueuedJob("77_0", "PENDING", "", "", "me", "", one.mark(0))}

    def sbatch(script: str) -> str:
        answer = left.pop(0)
        if isinstance(answer, str):
            return answer
        raise answer("words")

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    def look() -> dict[str, QueuedJob]:
        if queue is None:
            raise ValueError("down")
        return queue

    monkeypatch.setattr(client, "sbatch", sbatch)
    monkeypatch.setattr(client, "queue", look)
    monkeypatch.setattr(submit.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(submit.time, "sleep", sleep)
    sender = submit._Sender(one, Cluster(time_limit_hours=1.0, submit_minutes=1.0), tmp_path, Console(file=io.StringIO()))
    if isinstance(became, str):
        assert sender._sbatch(tmp_path, 0, room) == became
    else:
        with pytest.raises(became) as met:
            sender._sbatch(tmp_path, 0, room)
        assert type(met.value) is became
    assert waited == pauses and sender.troubled == (answers[0] not in ("9", Refused, NoArrays))
