"""Hours asked for, lost and left, and restarts that are told, worked out by hand."""

from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import restarts
from slurm import efficiency, graph, launcher, status, submit
from slurm.batch import _memory
from slurm.cluster import Cluster, KindSettings, TrainSettings
from slurm.job import Batch, Job, Resources
from tests.slurm.test_status import TRAIN, _no_accounting, job_states, note, queued, submission  # noqa: F401

NODE = Cluster(
    time_limit_hours=2.0, gpus_per_node=4, gpu_tflops=100.0, margin=1.25, evaluate=KindSettings(time_limit_hours=3.0)
)


def job(key: str, minutes: int, makes: tuple[str, ...] = ("a", "b"), memory: float = 1.0, gpus: int = 1) -> Job:
    return Job(key, "", (), (), tuple(map(Path, makes)), Path(), Resources(1, 1, gpus, minutes, memory=memory))


@pytest.mark.parametrize(("estimate", "gpus", "minutes"), [
    (0.0, 1, 30), (0.2, 1, 30), (0.21, 1, 31),  # half an hour at least: 1.25 times the estimate, and 15 minutes to start
    (1.4, 1, 120), (1.41, 2, 68), (2.8, 2, 120), (2.81, 4, 68), (5.6, 4, 120), (9.0, 4, 120),  # doubled while it does not fit
])  # fmt: skip
def test_gpus_are_doubled_until_a_training_fits(estimate, gpus, minutes, monkeypatch):
    monkeypatch.setattr(graph, "train_gpu_hours", lambda run, cluster: estimate)
    run = SimpleNamespace(spec=SimpleNamespace(name="fox", train=SimpleNamespace(num_pieces=32)))
    found = graph.for_training(run, NODE)
    assert (found.gpus, found.tasks, found.nodes, found.minutes, found.gpu_hours) == (gpus, gpus, 1, minutes, estimate)
    given = graph.for_training(run, replace(NODE, train=TrainSettings(gpus=8)))
    assert (given.gpus, given.nodes, given.tasks_per_node) == (8, 2, 4)
    assert given.minutes == max(30, -(-(estimate * 1.25 / 8 + 0.25) * 60 // 1))


@pytest.mark.parametrize(("state", "before", "asked", "minutes", "memory"), [
    ("TIMEOUT", (60, 1.0), 30, 90, 1.0), ("TIMEOUT", (61, 1.0), 30, 92, 1.0), ("TIMEOUT", (160, 1.0), 30, 180, 1.0),
    ("TIMEOUT", (20, 1.0), 45, 45, 1.0), ("OUT_OF_MEMORY", (60, 1.0), 30, 60, 1.5),
    ("OUT_OF_MEMORY", (20, 2.25), 30, 30, 3.375), ("COMPLETED", (90, 1.5), 30, 90, 1.5), ("FAILED", (20, 1.0), 30, 30, 1.0),
])  # fmt: skip
def test_an_evaluation_that_had_too_little_gets_half_more(state, before, asked, minutes, memory):
    """It never gets less than one that was not cut off, nor more time than the limit of three hours."""
    new, old = job("evaluate:a:1", asked), job("evaluate:a:2", before[0], ("b", "c"), before[1])
    found = graph.enlarged(new, [(old, state)], NODE).resources
    assert (found.minutes, found.memory) == (minutes, memory)
    for other in (replace(old, makes=(Path("c"),)), replace(old, key="train:a"), replace(old, key="time:a:2")):
        assert graph.enlarged(new, [(other, state)], NODE) == new
    assert graph.enlarged(replace(new, key="train:a"), [(replace(old, key="train:a"), state)], NODE).resources == new.resources


def test_memory_is_of_all_tasks():
    assert [_memory(gb, tasks) for gb, tasks in ((None, 2), (4.0, 2), (4.0, 1.5), (0.5, 1), (2.5, 1.5))] == [
        None, "8G", "6G", "512M", "3840M",
    ]  # fmt: skip


@pytest.mark.parametrize(("after", "asked", "used", "lost", "queued"), [
    (("end", "again", 30, "one"), 2, 1, 1, 0.25), (("end", "again", 30, "two"), 2, 1, 0, 0.25),
    (("end", "failed", 30, "one"), 2, 1, 1, 0.25), (("end", "done", 30, "one"), 2, 1, 0, 0.25), (None, 2, 1.5, 0, 0.25),
    (("start", None, 30, "one"), 4, 1.5, 1, 0.25), (("start", None, 30, "two"), 4, 1.5, 0, 0.25),  # nobody wrote how it ended
    (("start", None, 300, "one"), 4, 2, 2, 4.25), (("start", None, 300, "two"), 4, 2, 0, 4.25),  # an hour at the most
])  # fmt: skip
def test_hours_are_lost_where_a_start_ends_where_it_began(after, asked, used, lost, queued):
    """Two GPUs for an hour, begun after 15 minutes; it is now three quarters of an hour after that."""
    ready = datetime(2026, 1, 1).astimezone()

    def event(kind: str, action: str | None, minutes: int, mark: str) -> dict:
        return {"event": kind, "action": action, "mark": mark, "date": (ready + timedelta(minutes=15 + minutes)).isoformat()}

    events = [event("start", None, 0, "one"), *([event(*after)] if after else [])]
    total = efficiency.Hours()
    efficiency._add(total, job("train:a", 60, gpus=2), events, ready, ready + timedelta(minutes=60))
    assert total == efficiency.Hours(1, asked, used, lost, queued)


@pytest.mark.parametrize(("code", "told"), [(75, ""), (1, "it crashed"), (137, "it crashed")])
def test_a_job_that_saved_to_go_on_has_not_failed(code, told, tmp_path):
    one = submission(tmp_path)
    for event, values in (("start", {}), ("end", dict(code=code, action="again", reason="it crashed")), ("start", {})):
        note(one, TRAIN, event, "5", mark="step-0", **values)
    state, *_ = job_states([one], queued("5", "RUNNING"))
    assert (state.restarts, state.restarted) == (1, told)


@pytest.mark.parametrize(("rank", "name"), [(0, "a.log"), (1, "a.rank1.log"), (2, "a.rank2.log")])
def test_every_process_has_a_log(rank, name, tmp_path, monkeypatch):
    logs = []
    monkeypatch.setattr(launcher, "say_to", logs.append)
    start = SimpleNamespace(job=SimpleNamespace(log=tmp_path / "evals" / "a.log"), id="5", restart=1)
    launcher._redirect(rank, start)
    assert logs == [tmp_path / "evals" / name] and logs[0].parent.is_dir()


@pytest.mark.parametrize(("fruitless", "given_up"), [(0, False), (2, False), (3, True)])
def test_a_job_gives_up_after_more_fruitless_starts_than_it_may_have(fruitless, given_up, tmp_path, monkeypatch):
    job = SimpleNamespace(folder=tmp_path, module="m", args=())
    start, ran = SimpleNamespace(job=job, max_restarts=2, withdrawn=False), []
    handlers: dict = {}
    monkeypatch.setattr(launcher, "signal", SimpleNamespace(SIGTERM=15, SIGUSR2=12, signal=handlers.__setitem__))
    monkeypatch.setattr(launcher.Start, "own", lambda *given: start)
    monkeypatch.setattr(launcher.restarts, "progress_mark", lambda folder: "step-0")
    monkeypatch.setattr(launcher.runpy, "run_module", lambda name, **how: ran.append(name))
    monkeypatch.setattr(launcher.sys, "argv", ["launcher", "record", "0"])
    for name, value in (("meet", None), ("_redirect", None), ("note_start", None), ("fruitless_starts", fruitless)):
        monkeypatch.setattr(launcher, name, lambda *given, value=value: value)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    with pytest.raises(SystemExit) if given_up else nullcontext() as left:
        launcher.main()
    assert ran == ([] if given_up else ["m"])
    assert not given_up or left.value.code == restarts.GIVEN_UP
    assert set(handlers) == {12, 15}
    for number, handler in handlers.items():
        with pytest.raises(SystemExit, match=r"^75$"):  # started again
            handler(number, None)
    start.withdrawn = True
    for rank in ("0", "1"):  # in every process
        monkeypatch.setenv("SLURM_PROCID", rank)
        monkeypatch.setattr(launcher.sys, "argv", ["launcher", "record", "0"])
        with pytest.raises(SystemExit, match=r"^3$"):
            launcher.main()


@pytest.mark.parametrize(("tokens", "speed", "left"), [
    (0, 100.0, "17 min"), (60_000, 100.0, "7 min"), (0, 14.0, "119 min"), (0, 13.0, "2.1 h"), (100_000, 100.0, "0 min"),
])  # fmt: skip
def test_the_time_left_of_a_training(tokens, speed, left, tmp_path, monkeypatch):
    """A hundred thousand tokens are a hundred steps."""
    train = SimpleNamespace(train_tokens=100_000, num_steps=100)
    row = {"tokens": tokens, "tokens_per_s": speed, "step": tokens // 1000}
    run = SimpleNamespace(last_row=lambda: row, read_spec=lambda: SimpleNamespace(train=train))
    monkeypatch.setattr(status, "RunFolder", lambda folder: run)
    assert status.progress(tmp_path) == (f"{tokens // 1000}/100", f"{speed:,.0f}", left)


@pytest.mark.parametrize(("limit", "jobs", "whole", "throttle"), [
    (None, 8, 8, None), (6, 8, 8, 6), (6, 4, 8, 3), (6, 3, 8, 2), (6, 1, 8, 1), (2, 1, 8, 1), (8, 8, 8, 8),
])  # fmt: skip
def test_parts_of_a_group_share_its_throttle(limit, jobs, whole, throttle, monkeypatch, tmp_path):
    """One array of all keeps to it; each of its parts to its share, and to one job at least."""
    asked = []
    monkeypatch.setattr(submit, "_append", lambda *given: asked.append(given[-1]) or (tmp_path / "script", ""))
    one = submission(tmp_path)
    sender = submit._Sender(one, replace(NODE, max_concurrent=limit), tmp_path, None)
    monkeypatch.setattr(sender, "_sbatch", lambda *given, **how: "9")
    monkeypatch.setattr(one, "change", lambda *given, **how: None)
    monkeypatch.setattr(one, "save", lambda: None)
    sender._submit(Batch(dict.fromkeys(range(jobs), TRAIN)), whole)
    assert asked == [throttle]


def test_an_array_is_of_equal_kind_and_shape_and_of_times_within_four():
    """A throttle is for all of them, whatever their times."""
    of_time = [job(f"train:{minutes}", minutes) for minutes in (31, 32, 100, 127, 128, 33)]
    others = [job("train:memory", 32, memory=1.5), job("train:gpus", 32, gpus=2), job("time:a", 32), job("evaluate:a", 32)]
    names = [[each.key.split(":")[1] for each in group] for group in graph.groups([*of_time, *others], NODE)]
    assert names == [["31"], ["32", "100", "127", "33"], ["128"], ["memory"], ["gpus"], ["a"], ["a"]]
    throttled = graph.groups([*of_time, *others], replace(NODE, max_concurrent=2))
    assert [len(group) for group in throttled] == [6, 1, 1, 1, 1]


@pytest.mark.parametrize(("hours", "kind", "minutes"), [
    (1.0, "train", 60), (1.001, "train", 61), (9.0, "train", 120), (9.0, "evaluate", 180), (0.0, "train", 10),
    (0.2, "draw", 12), (0.1, "draw", 10),
])  # fmt: skip
def test_minutes_are_at_least_two_signals_and_at_most_the_limit(hours, kind, minutes):
    """Five minutes before the end a job is told to save."""
    assert graph._minutes(hours, kind, NODE) == minutes


@pytest.mark.parametrize(("key", "needs", "waits"), [
    ("evaluate:a-1:e", ("train:a-1", "prepare:c"), ("afterok", ["5_0"])),
    ("evaluate:b-1:e", ("prepare:c",), ("afterok", ["4"])),
    ("evaluate:c-1:e", ("train:c-1", "prepare:c"), ("afterok", ["4"])), ("time:a-1:t", (), ("afterok", [])),
    ("draw:f:1", ("evaluate:a-1:e", "evaluate:b-1:e", "time:a-1:t"), ("afterany", ["6_0", "7"])),
])  # fmt: skip
def test_a_job_waits_for_its_training_or_else_for_all_that_it_needs(key, needs, waits):
    ids = {"prepare:c": "4", "train:a-1": "5_0", "train:b-1": "5_1", "evaluate:a-1:e": "6_0", "time:a-1:t": "7"}
    assert graph._dependency(replace(job(key, 60), needs=needs), ids) == waits
