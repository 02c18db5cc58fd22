"""Commands of `python -m slurm` on submissions made by hand, with a queue that answers at once; the two ends of a job; what a
notebook submits."""

import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import slurm.__main__ as commands
from experiments import restarts
from slurm import callables, client, epilogue, launcher, status, submit
from slurm.client import QueuedJob
from slurm.cluster import Cluster
from slurm.epilogue import Start
from slurm.job import Batch, Job, Resources
from slurm.snapshot import PACKAGES, ROOT, code_files, snapshot
from tests.slurm.test_epilogue import start_of
from tests.slurm.test_status import DRAW, EVALUATE, TRAIN, _no_accounting, note, queued, submission  # noqa: F401


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A queue, what was cancelled, and main(...) -> (exit code, output)."""
    found = SimpleNamespace(queue={}, cancelled=[], unseen=set(), folder=tmp_path)
    monkeypatch.setattr(client, "require_slurm", lambda: None)
    monkeypatch.setattr(client, "queue", lambda others=(): found.queue)
    monkeypatch.setattr(client, "unseen", lambda others, queue: found.unseen)
    monkeypatch.setattr(client, "cancel", lambda ids: found.cancelled.append(set(ids)))
    monkeypatch.setattr(client, "me", lambda: "me")

    def call(capsys, *words: str) -> tuple[int, str]:
        code = commands.main([words[0], "--runs-dir", str(tmp_path / "runs"), *words[1:]])
        told = capsys.readouterr()
        return code, told.out + told.err

    found.call = call
    return found


def test_submissions_are_found_by_scale(site, capsys):
    submission(site.folder)
    for words, code in (((), 1), (("--scale", "tiny"), 1), (("--scale", "mini"), 2)):
        assert site.call(capsys, "status", *words)[0] == code
    told = site.call(capsys, "status", "--scale", "mini")[1]
    remedy = "`python -m slurm run` submits, --runs-dir says where the runs are."
    assert told == f"error: nothing was submitted from {site.folder}/runs/mini; {remedy}\n"
    code, told = site.call(capsys, "status", "fox", "y")
    assert (code, told) == (2, "error: y: no such run was submitted; there are fig2, fox-1.\n")


@pytest.mark.parametrize(("states", "code"), [
    (("RUNNING", "PENDING", "PENDING"), 0), (("FAILED", "PENDING", "PENDING"), 1), (("RUNNING", "RUNNING", "FAILED"), 1),
])  # fmt: skip
def test_status_and_watch_end_with_1_where_something_failed(site, capsys, monkeypatch, states, code):
    submission(site.folder)
    site.queue = {job: queued(job, state)[job] for job, state in zip("567", states, strict=True)}
    assert site.call(capsys, "status")[0] == code
    naps = []

    def sleep(seconds: float) -> None:
        """The controller is down for the first nap; in the second one all jobs end."""
        naps.append(seconds)
        if len(naps) == 1:
            monkeypatch.setattr(client, "queue", lambda others=(): (_ for _ in ()).throw(ValueError("down")))
        else:
            monkeypatch.setattr(client, "queue", lambda others=(): {job: queued(job, "FAILED")[job] for job in "567"})

    monkeypatch.setattr(commands.time, "sleep", sleep)
    ended, told = site.call(capsys, "watch", "--every", "3")
    assert ended == 1 and naps == [3.0, 3.0] and "2 failed" in told


def test_watch_shows_what_failed_where_there_is_no_room_for_all(site, capsys, monkeypatch):
    submission(site.folder)
    site.queue = queued("5", "RUNNING") | queued("6", "PENDING", "Dependency") | queued("7", "FAILED")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands.time, "sleep", interrupt)
    code, told = site.call(capsys, "watch")
    assert code == 130 and told.startswith("1 failed, 1 running\n") and told.index("\nfig2 ") < told.index("\nfox-1 ")
    assert told.endswith("the jobs keep running; `python -m slurm cancel` cancels them\n") and "interrupted" not in told


def test_names_are_whole_in_a_narrow_terminal(tmp_path):
    one, told = submission(tmp_path), io.StringIO()
    why = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    found = status.rows(status.job_states([one], queued("5", "PENDING", why)))
    name = "transformer_llama-735c1e92fc"
    found = [[replace(state, job=replace(state.job, key=state.job.key.replace("fox-1", name)))] for state, *_ in found]
    Console(file=told, width=100).print(status.table(found))
    assert name in told.getvalue()


def test_logs_are_shown_once_their_last_lines_and_the_shells_where_there_are_no_others(site, capsys):
    one = submission(site.folder)
    site.queue = queued("5", "RUNNING") | queued("6", "PENDING", "Dependency") | queued("7", "PENDING")
    assert site.call(capsys, "logs") == (2, "error: logs of which run? Give a part of its name; `status` lists them.\n")
    log = one.jobs[TRAIN].log
    log.parent.mkdir(parents=True)
    log.write_text("a\nb\nc\n")
    log.with_name("train.rank1.log").write_text("d\n")
    (site.folder / "train-5.log").write_text("shell\n")
    (site.folder / "evaluate-6.log").write_text("other\n")
    code, told = site.call(capsys, "logs", "fox", "--lines", "2")
    words = told.split()
    assert code == 0 and [word for word in words if word in ("a", "b", "c", "d", "shell", "other")] == [
        "b",
        "c",
        "d",
        "shell",
        "other",
    ]
    assert f"{one.jobs[EVALUATE].log}: not there yet; job 6 is waiting" in told and "fig2" not in told
    assert f"{log}: not there" not in told
    key = f"{EVALUATE[:-2]}bb"  # another evaluation of the run, which has the same log
    one.jobs[key] = replace(one.jobs[EVALUATE], key=key, makes=(Path("another"),))
    one.batches.append(Batch({0: key}, id="8"))
    one.save()
    one.jobs[key].log.write_text("e\n")
    assert site.call(capsys, "logs", "fox")[1].split().count("e") == 1


def test_what_is_cancelled_is_noted_unless_it_runs(site, capsys):
    one = submission(site.folder)
    assert site.call(capsys, "cancel") == (0, "no job is queued or running\n")
    site.queue = queued("5", "RUNNING") | queued("6", "PENDING") | queued("7", "FAILED")
    late = QueuedJob("55_3", "PENDING", "", "", "me", "", one.mark(0))
    site.queue |= {"55_3": late}
    code, told = site.call(capsys, "cancel")
    assert (code, told) == (0, "cancelled 3 jobs\n") and site.cancelled == [set(), {"5", "6", "55"}]
    events = {kind: restarts.read(one.jobs[kind].journal) for kind in (TRAIN, EVALUATE, DRAW)}
    assert not events[TRAIN] and not events[DRAW]
    (event,) = events[EVALUATE]
    assert {name: event[name] for name in ("event", "job", "code", "action", "reason")} == {
        "event": "end", "job": "6", "code": 0, "action": "cancelled", "reason": "cancelled by me",
    }  # fmt: skip
    site.cancelled.clear()
    site.queue = queued("5", "RUNNING") | queued("7", "PENDING")
    assert site.call(capsys, "cancel", "fig2") == (0, "cancelled 1 jobs\n") and site.cancelled == [{"7"}]


def test_what_was_submitted_is_asked_for_again_with_its_settings_or_others(site, capsys, monkeypatch, tmp_path):
    """Submit each request once, with the newest settings; nothing that was withdrawn. The worst exit code is that of all."""
    from slurm.cluster import CLUSTER
    from slurm.submit import REQUEST, Request

    monkeypatch.chdir(tmp_path)
    for number, (scale, hours, withdrawn) in enumerate(
        (("tiny", 1.0, False), ("tiny", 2.0, False), ("mini", 3.0, False), ("mini", 4.0, True))
    ):
        one = submission(site.folder, f"2026010{number}-000000-1")
        one.request = REQUEST.dump_python(Request(scale=scale), mode="json")
        one.cluster, one.withdrawn = CLUSTER.dump_python(Cluster(time_limit_hours=hours), mode="json"), withdrawn
        one.cwd = str(tmp_path / scale)
        Path(one.cwd).mkdir(exist_ok=True)
        one.save()
    sent = []

    def send(plan: tuple, cluster: Cluster, console: Console, names: tuple[str, ...]) -> int:
        sent.append((plan[0].scale, plan[1].time_limit_hours, cluster.time_limit_hours, names, Path.cwd().name))
        return 75 if plan[0].scale == "tiny" else 0

    monkeypatch.setattr(submit, "planned", lambda request, cluster: (request, cluster))
    monkeypatch.setattr(submit, "submit", send)
    code, told = site.call(capsys, "resubmit")
    assert code == 75 and "with the cluster settings of the earlier submission; --cluster FILE" in told
    assert sent == [("tiny", 2.0, 2.0, (), "tiny"), ("mini", 3.0, 3.0, (), "mini")]
    sent.clear()
    (tmp_path / "new.toml").write_text("time_limit_hours = 9\n")
    monkeypatch.chdir(tmp_path)
    assert site.call(capsys, "resubmit", "fox", "--cluster", "new.toml") == (75, "")
    assert sent == [("tiny", 9.0, 9.0, ("fox",), "tiny"), ("mini", 9.0, 9.0, ("fox",), "mini")]
    assert site.call(capsys, "resubmit", "nothing")[0] == 2 and len(sent) == 2


@pytest.mark.parametrize("dry", [True, False])
def test_a_run_is_submitted_or_rehearsed_with_whole_paths(monkeypatch, tmp_path, dry):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("time_limit_hours = 9\n")
    calls = []
    monkeypatch.setattr(
        submit, "planned", lambda request, cluster, rehearsal: calls.append((request, cluster, rehearsal)) or "plan"
    )
    for name, code in (("submit", 75), ("rehearse", 0)):
        monkeypatch.setattr(submit, name, lambda *given, name=name, code=code: calls.append((name, given[0])) or code)
    asked = ["run", "--cluster", "c.toml", "--runs-dir", "r", *(["--dry-run"] if dry else [])]
    assert commands.main(asked) == (0 if dry else 75)
    (request, cluster, rehearsal), call = calls
    assert call == ("rehearse" if dry else "submit", "plan") and rehearsal is dry and cluster.time_limit_hours == 9
    assert (request.runs_dir, request.results_dir, request.corpora_dir) == (
        tmp_path / "r",
        tmp_path / "results",
        tmp_path / "corpora",
    )


ELSEWHERE = "which its next starts avoid\n"


@pytest.mark.parametrize(("code", "made", "state", "node", "complaint", "taken", "said"), [
    (0, True, "RUNNING", None, None, True, "exit code 0: done\n"),
    (0, False, "RUNNING", "n1", None, True, f"exit code 1: again, exit code 1\nit crashed on n1, {ELSEWHERE}"),
    (1, False, "RUNNING", "n1", None, False, "exit code 1: again, exit code 1\n"),
    (1, False, "RUNNING", None, None, True, "exit code 1: again, exit code 1\n"),
    (75, False, "RUNNING", "n1", None, True, "exit code 75: again, saved, to go on\n"),
    (124, False, "TIMEOUT", "n1", None, True, "exit code 124: again, did not exit in time\n"),
    (137, False, "PREEMPTED", "n1", None, True, "exit code 137: again, killed by SIGKILL\n"),
    (137, False, "UNKNOWN", "n1", None, True, "exit code 137: ended, SLURM says unknown\n"),
    (1, False, "RUNNING", "n1", "no", True, "exit code 1: again, exit code 1\nerror: not requeued: no\n"),
    (2, False, "RUNNING", "n1", None, True, "exit code 2: failed, no log was written\n"),
])  # fmt: skip
def test_the_end_of_a_job(tmp_path, monkeypatch, capfd, code, made, state, node, complaint, taken, said):
    """It is requeued where it is to start again, and kept from its node after a crash; all of that is noted."""
    start, asked = start_of(tmp_path, 0), []
    epilogue.note_start(start, restarts.progress_mark(tmp_path))
    start = replace(start, job=replace(start.job, makes=(tmp_path / "one", tmp_path / "two")))
    for name in ("one", "two")[: 1 + made]:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(Start, "own", classmethod(lambda cls, record, entry: asked.append((record, entry)) or start))
    monkeypatch.setattr(epilogue, "broken_node", lambda start: node)
    for name, answer in (("state", state), ("requeue", complaint), ("without", "n1,n2"), ("avoid", taken)):
        monkeypatch.setattr(client, name, lambda *given, name=name, answer=answer: asked.append((name, *given)) or answer)
    monkeypatch.setattr("sys.argv", ["epilogue", "record", "3", str(code)])
    assert epilogue.main() == (1 if code == 0 and not made else code)
    again = ": again" in said
    crashed = again and code in (0, 1) and node is not None
    assert asked == [(Path("record"), 3), *([("state", "7")] if not made else []),
         *([("without", "7", "n1", 1)] if crashed else []),
                     *([("requeue", "7")] if again else []), *([("avoid", "7",
                          "n1,n2")] if crashed and complaint is None else [])]  # fmt: skip
    assert capfd.readouterr().err == said
    events = restarts.read(start.job.journal)
    mark = restarts.progress_mark(tmp_path)
    first = events[1]
    assert (first["event"], first["job"], first["restart"], first["mark"], first["code"]) == (
        "end",
        "7",
        0,
        mark,
        1 if code == 0 and not made else code,
    )
    words = ", ".join(filter(None, (first["action"], first["reason"])))
    assert f"exit code {first['code']}: {words}\n" == said[: said.index("\n") + 1]
    if "it crashed on" in said:
        assert (events[2]["event"], events[2]["job"], events[2]["node"]) == ("excluded", "7", "n1")
    elif complaint is not None:
        assert (events[2]["action"], events[2]["code"], events[2]["mark"]) == ("failed", code, mark)
    else:
        assert len(events) == 2


@pytest.mark.parametrize(("kind", "gpus", "left", "there", "code"), [
    ("train", 2, 2, False, 76), ("train", 2, 2, True, 2), ("train", 0, 2, False, 2), ("evaluate", 2, 2, False, 2),
    ("train", 2, 75, False, 75),
])  # fmt: skip
def test_a_task_runs_as_its_module_and_tells_of_a_node_without_gpus(
    tmp_path, monkeypatch, capfd, kind, gpus, left, there, code
):
    start = replace(
        start_of(tmp_path, 2), job=Job(f"{kind}:a", "its.module", ("--x", "1"), (), (), tmp_path, Resources(1, 1, gpus, 1))
    )
    seen: list = []

    def run_module(name: str, **how: object) -> None:
        seen.append((name, how, sys.argv[:], restarts.read(start.job.journal)[-1]))
        raise SystemExit(left)

    monkeypatch.setattr(Start, "own", classmethod(lambda cls, record, entry: seen.append((record, entry)) or start))
    monkeypatch.setattr(launcher, "_redirect", lambda rank, of: seen.append((rank, of is start)))
    monkeypatch.setattr(launcher, "_no_gpu", lambda: not there)
    monkeypatch.setattr(launcher.runpy, "run_module", run_module)
    monkeypatch.setattr(launcher.signal, "signal", lambda number, handler: seen.append(number))
    monkeypatch.setenv("SLURMD_NODENAME", "n4")
    monkeypatch.setattr("sys.argv", ["launcher", "record", "3"])
    with pytest.raises(SystemExit) as met:
        launcher.main()
    assert met.value.code == code and ("error: this node: no GPU" in capfd.readouterr().err) == (code == 76)
    assert seen[:4] == [signal.SIGTERM, signal.SIGUSR2, (Path("record"), 3), (0, True)]
    name, how, argv, event = seen[4]
    assert (name, how, argv) == ("its.module", dict(run_name="__main__", alter_sys=True), ["its.module", "--x", "1"])
    assert (event["event"], event["job"], event["restart"], event["node"], event["mark"]) == (
        "start",
        "7",
        2,
        "n4",
        restarts.progress_mark(tmp_path),
    )
    monkeypatch.setenv("SLURM_PROCID", "1")
    with pytest.raises(SystemExit):
        launcher.main()
    assert len(restarts.read(start.job.journal)) == 1  # the first process alone notes it


@pytest.mark.parametrize(("built", "available", "broken"), [(True, False, True), (True, True, False), (False, False, False)])
def test_a_torch_without_cuda_is_no_broken_node(monkeypatch, built, available, broken):
    import torch

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert launcher._no_gpu() is broken


def test_a_python_without_the_packages_is_a_mistake_and_named(tmp_path, monkeypatch, capfd):
    start = replace(start_of(tmp_path, 0), job=Job("train:a", "its", (), (), (), tmp_path, Resources(1, 1, 0, 1)))
    (tmp_path / "its.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Start, "own", classmethod(lambda *_: start))
    monkeypatch.setattr(launcher, "_redirect", lambda *_: None)
    monkeypatch.setattr(launcher.signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["launcher", "record", "0"])
    with pytest.raises(SystemExit) as left:
        launcher.main()
    remedy = "select the right python by `python` or `setup` in the cluster file"
    said = capfd.readouterr().err
    assert left.value.code == 2 and said.endswith(f"error: {sys.executable} has no module named 'no_such_package': {remedy}\n")
    assert 'its.py", line 1' in said


def test_output_goes_to_a_log_of_each_process(tmp_path, monkeypatch, capsys):
    start, logs = start_of(tmp_path / "run", 2), []
    monkeypatch.setenv("SLURMD_NODENAME", "n4")
    monkeypatch.setattr(launcher, "say_to", logs.append)
    for rank in (0, 3):
        launcher._redirect(rank, start)
    assert logs == [tmp_path / "run/logs/train.log", tmp_path / "run/logs/train.rank3.log"] and logs[0].parent.is_dir()
    assert capsys.readouterr().err == f"--- job 7 on n4, restart 2, {sys.executable}\n" * 2


def test_what_is_in_a_snapshot(tmp_path):
    """The rooms, but no rows, no compiled modules and nothing hidden; a second one of equal code is the first."""
    for path in ("slurm/a.py", "slurm/clusters/b.toml", "slurm/.c", "slurm/__pycache__/d.pyc", "slurm/.e/f.py", "results/g.py",
                 "results/tiny/h.parquet", "analysis/i.txt", "tests/j.py", "k.py"):  # fmt: skip
        (tmp_path / "code" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / path).write_text(path)
    assert set(PACKAGES) == {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} - {"tests"}
    found = ["analysis/i.txt", "results/g.py", "slurm/a.py", "slurm/clusters/b.toml"]
    assert code_files(tmp_path / "code") == found
    made = snapshot(tmp_path / "deep/snapshots", tmp_path / "code")
    assert made.parent == tmp_path / "deep/snapshots" and len(made.name) == 16 and made.stat().st_mode & 0o777 == 0o755
    assert sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()) == sorted(
        [*found, "snapshot.json"]
    )
    (made / "mark").touch()
    assert snapshot(made.parent, tmp_path / "code") == made and (made / "mark").exists()
    for spoil in (Path.unlink, lambda path: path.write_text("cut")):  # a scratch disk that is cleaned
        spoil(made / "slurm/a.py")
        assert snapshot(made.parent, tmp_path / "code") == made and (made / "slurm/a.py").read_text() == "slurm/a.py"
        assert len(list(made.parent.iterdir())) == 1
    (tmp_path / "code/slurm/a.py").rename(tmp_path / "code/slurm/b.py")  # in the same place of all
    assert snapshot(made.parent, tmp_path / "code") != made and len(list(made.parent.iterdir())) == 2


def test_a_callable_notes_every_start_and_goes_on_as_the_rule_has_it(tmp_path, monkeypatch):
    task = callables.Submittable("train:a", "training", ("x",), (), (), tmp_path, tmp_path, "cpu")
    codes = [75, 1, 0]
    monkeypatch.setattr(callables.Submittable, "_run", lambda self: codes.pop(0))
    assert task() == "train a" and not codes
    events = restarts.read(task.journal)
    assert [(event["event"], event.get("action")) for event in events] == [
        ("start", None), ("end", "again"), ("start", None), ("end", "again"), ("start", None), ("end", "done")]  # fmt: skip
    codes = [1] * 4
    with pytest.raises(RuntimeError, match=r"^train b: given up after 4 starts .*: exit code 1: no log was written; log: "):
        replace(task, key="train:b", folder=tmp_path / "b")()


def test_a_callable_that_has_had_its_hours_is_not_started_again(tmp_path, monkeypatch):
    """Submitted again, it goes on; a crash is tried again as ever."""
    task = callables.Submittable("train:a", "training", ("x", "--max-hours", "0.5"), (), (), tmp_path, tmp_path, "cpu")
    codes = [1, 75, 0]
    monkeypatch.setattr(callables.Submittable, "_run", lambda self: codes.pop(0))
    with pytest.raises(
        RuntimeError, match=r"^train a: saved, to go on: its --max-hours are used up; submit it again to resume"
    ):
        task()
    assert codes == [0] and not restarts.has_ended(task.journal, restarts.read(task.journal)[-1]["job"])
    assert task() == "train a"


@pytest.mark.parametrize(("device", "given", "added"), [
    ("cpu", {"RANK": "1", "WORLD_SIZE": "2", "A": "b", "PYTHONPATH": "p"},
    {"A": "b", "PYTHONPATH": f"{callables.ROOT}{os.pathsep}p", "OMP_NUM_THREADS": "1"}),
    ("cuda", {"MASTER_ADDR": "m"}, {"PYTHONPATH": str(callables.ROOT)}),
    ("cpu", {"OMP_NUM_THREADS": "9"}, {"PYTHONPATH": str(callables.ROOT), "OMP_NUM_THREADS": "1"}),
])  # fmt: skip
def test_the_environment_of_a_callable_is_of_no_other_group_of_processes(tmp_path, monkeypatch, device, given, added):
    monkeypatch.setattr(callables, "equal_bits", lambda threads, known: {})
    monkeypatch.setattr("os.environ", dict(given))
    assert callables.Submittable("train:a", "m", (), (), (), tmp_path, tmp_path, device)._environment() == added


def test_a_callable_is_told_to_save_and_submitted_again(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    task = callables.Submittable("train:a", "m", (), (), (), tmp_path, tmp_path, "cpu", [1, child.pid])
    again = task.checkpoint()
    assert again.function == replace(task, pids=[]) and child.wait() == -signal.SIGUSR2
    assert task.checkpoint().function.pids == []  # it has ended by itself
    assert replace(task, pids=[]).checkpoint().function == replace(task, pids=[])  # it has not begun


@pytest.mark.parametrize(("names", "user", "withdrawn", "ended", "refused"), [
    ({"a"}, "ann", False, False, True), ({"a"}, "ann", True, False, False), ({"a"}, "ann", False, True, False),
    (set(), "ann", False, False, False), ({"a"}, "zoe", False, False, False), ({"b"}, "ann", False, False, False),
])  # fmt: skip
def test_what_a_hidden_colleague_has_submitted_is_refused(tmp_path, names, user, withdrawn, ended, refused):
    one = submission(tmp_path, user=user)
    one.withdrawn = withdrawn
    if ended:
        note(one, EVALUATE, "end", "6", code=2, action="failed", reason="")
    mine = [replace(one.jobs[EVALUATE], makes=tuple(path for path in one.jobs[EVALUATE].makes if path.stem in names))]
    if refused:
        with pytest.raises(ValueError, match=f"^ann has submitted 'evaluate fox-1' .*move {one.path} away.$"):
            submit._check_unseen(mine, [one], {"ann"})
    elif names != {"b"}:
        submit._check_unseen(mine, [one], {"ann"})
    else:
        with pytest.raises(ValueError, match="ann has submitted"):
            submit._check_unseen(mine, [one], {"ann"})


def test_what_is_queued_and_how_the_others_ended(tmp_path, monkeypatch):
    one, two = submission(tmp_path), submission(tmp_path, "two", ("8", "9", "10"))
    two.withdrawn = True
    queue = queued("5", "RUNNING") | queued("6", "TIMEOUT") | queued("9", "PENDING")
    assert {key: job_id for key, (job_id, _) in submit.active_jobs([one, two], queue).items()} == {TRAIN: "5", EVALUATE: "9"}
    monkeypatch.setattr(client, "accounted", lambda ids: dict.fromkeys(ids, "OUT_OF_MEMORY"))
    assert [(job.key, state) for job, state in submit._ended([one, two], queue)] == [
        (TRAIN, "RUNNING"),
        (EVALUATE, "TIMEOUT"),
        (DRAW, "OUT_OF_MEMORY"),
    ]


def test_what_was_sent_is_taken_back_with_what_came_too_late(tmp_path, monkeypatch):
    one, gone = submission(tmp_path), []
    one.batches[2] = replace(one.batches[2], id=None)
    late = QueuedJob("70", "PENDING", "", "", "me", "", one.mark(2))
    monkeypatch.setattr(client, "queue", lambda: {"70": late})
    monkeypatch.setattr(client, "cancel", lambda ids: gone.append(set(ids)))
    sender = submit._Sender(one, Cluster(time_limit_hours=1.0), tmp_path, Console(file=io.StringIO()))
    assert sender._withdraw() == 2 and gone == [{"5", "6", "70"}] and submit.read_submissions(one.path.parent)[0].withdrawn
