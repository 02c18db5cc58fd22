"""Tests of which checkpoints are kept: only whole ones count, and the newest whole one is never lost."""

import itertools
import os
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.build import build_model
from tests.training.runs import losses
from tests.training.test_loop import checkpointed, keep_the_folder_of, scale_loss, slow, wait_for_step
from training import checkpoint, manifest
from training.checkpoint import Checkpoints
from training.distributed import World
from training.run_folder import RunFolder
from training.signals import EXIT_FINISHED


@pytest.fixture
def save(tmp_path):
    """save(step) as a new process would: it looks for the newest whole checkpoint first."""

    def begin(step: int) -> int | None:
        checkpoints = Checkpoints(tmp_path / "checkpoints", "a run", World(0, 1, torch.device("cpu")), keep=2)
        found = checkpoints.newest_whole()
        checkpoints.save(step, {"weight": torch.full((100,), float(step))})
        return found

    begin.checkpoints = Checkpoints(tmp_path / "checkpoints", "a run", World(0, 1, torch.device("cpu")), keep=2)
    return begin


def weights_file(save, step):
    return next(save.checkpoints.path(step).glob("*.safetensors"))


def test_the_newest_are_kept(save):
    assert [save(step) for step in (1, 2, 3)] == [None, 1, 2]
    assert save.checkpoints.steps() == [2, 3]


@pytest.mark.parametrize("fault", ["cut off", "flipped", "no manifest"])
def test_damaged_ones_take_no_place(save, fault):
    """Two whole ones stay beside or instead of a damaged one, whether its size shows it or its digest."""
    for step in (1, 2, 3):
        save(step)
    file = weights_file(save, 3)
    if fault == "cut off":
        os.truncate(file, file.stat().st_size - 1)
    elif fault == "flipped":
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    else:
        (file.parent / "manifest.json").unlink()
    assert save(4) == 2
    assert save.checkpoints.steps() == [2, 4]
    assert save(5) == 4
    assert save.checkpoints.steps() == [4, 5]


def test_a_damaged_one_that_is_made_again_counts(save):
    for step in (1, 2, 3):
        save(step)
    file = weights_file(save, 3)
    file.write_bytes(b"damaged")
    assert save(3) == 2
    assert save.checkpoints.steps() == [2, 3]
    assert save(4) == 3
    assert save.checkpoints.steps() == [3, 4]


def test_one_that_is_damaged_while_the_run_goes_on_takes_no_place(save):
    for step in (1, 2):
        save.checkpoints.save(step, {"weight": torch.zeros(100)})
    weights_file(save, 2).write_bytes(b"cut")
    save.checkpoints.save(3, {"weight": torch.zeros(100)})
    assert save.checkpoints.steps() == [1, 3]


@pytest.mark.parametrize("background", [True, False])
def test_what_is_written_in_the_background_is_what_the_weights_were(tmp_path, background):
    checkpoints = Checkpoints(tmp_path, "a run", World(0, 1, torch.device("cpu")), keep=2, background=background)
    weight, seen = torch.nn.Parameter(torch.ones(3)), []
    checkpoints._write = lambda step, state, group: seen.append((step, state["weight"]))
    checkpoints.save(4, {"weight": weight})
    checkpoints.wait()
    with torch.no_grad():
        weight.zero_()  # the next step, before a slow disk has the bytes
    [(step, written)] = seen
    assert step == 4 and written.tolist() == [float(background)] * 3 and not (background and written.requires_grad)


def test_foreign_names_are_left_alone(save):
    for name in ("step-0000000x", "step-1", "notes"):
        (save.checkpoints.folder / name).mkdir(parents=True)
    save(1)
    assert save.checkpoints.steps() == [1] and (save.checkpoints.folder / "notes").is_dir()


@pytest.mark.parametrize(("free", "fits"), [(421, True), (420, True), (419, False), (400, False), (0, False)])
def test_a_twentieth_more_than_a_checkpoint_must_be_free(save, monkeypatch, free, fits):
    """A hundred numbers of four bytes each; a full disk is told before anything is written."""
    monkeypatch.setattr("training.checkpoint.shutil.disk_usage", lambda folder: SimpleNamespace(free=free))
    with nullcontext() if fits else pytest.raises(OSError, match="the disk is too full for a checkpoint"):
        save(1)
    assert save.checkpoints.steps() == [1] * fits and (fits or not list(save.checkpoints.folder.iterdir()))


def test_room_is_looked_for_without_what_a_killed_process_left(save, monkeypatch):
    left = save.checkpoints.folder / "step-00000001.partial"
    left.mkdir(parents=True)
    monkeypatch.setattr(
        "training.checkpoint.shutil.disk_usage", lambda folder: SimpleNamespace(free=0 if left.exists() else 420)
    )
    save(1)
    assert save.checkpoints.steps() == [1]


def test_intervals_are_wall_clock(make_run, start):
    """A step takes 0.02 s at least, so a checkpoint every 0.3 s is one in several steps."""
    run = make_run(steps=500)
    outcome = start(run, before=slow, checkpoint_minutes=0.3 / 60, keep_checkpoints=100)
    wait_for_step(run, 70)
    outcome.processes[0].kill()
    outcome.processes[0].join()
    steps = [int(path.name[5:]) for path in sorted(run.checkpoints.glob("step-????????"))]
    assert len(steps) >= 2
    walls = [run.read_metrics()[step - 1]["wall_s"] for step in steps]
    assert all(later - earlier > 0.29 for earlier, later in itertools.pairwise(walls))


def test_a_checkpoint_of_another_run_or_step_is_passed_over(save, tmp_path, capsys):
    save(1)
    other = Checkpoints(tmp_path / "other", "another run", World(0, 1, torch.device("cpu")))
    other.save(5, {"weight": torch.zeros(100)})
    shutil.copytree(other.path(5), save.checkpoints.path(5))
    shutil.copytree(save.checkpoints.path(1), save.checkpoints.path(7))
    assert save.checkpoints.newest_whole() == 1
    said = capsys.readouterr().err
    assert "its run_id is another run, not a run" in said and "its step is 1, not 7" in said
    manifest.seal(other.path(5), step=5)  # as before runs were named
    shutil.rmtree(save.checkpoints.path(5))
    shutil.copytree(other.path(5), save.checkpoints.path(5))
    assert save.checkpoints.newest_whole() == 5


keep = partial(keep_the_folder_of, "checkpoints")
STATES = ("model.", "exp_avg.", "exp_avg_sq.", "steps.", "guard.mean_norm", "guard.steps_seen")


def stopped_at_four(make_run, start, name):
    """A run that was broken off after its checkpoint of step 4 of 8."""
    run = make_run(name, steps=8)
    assert start(run, before=partial(scale_loss, 5, float("inf")), checkpoint_minutes=0, spike_factor=9.0).exit_code() == 1
    return run


def test_a_checkpoint_holds_all_that_comes_after_it(make_run, start):
    """Weights, both moments and the count of steps of every parameter, and the mean that tells spikes. Batches are functions of
    the step, and nothing is random."""
    run = stopped_at_four(make_run, start, "run")
    held = checkpointed(run, 4)
    trained = dict(build_model(run.read_spec().model).named_parameters())
    wanted = {f"model.{name}": value for name, value in build_model(run.read_spec().model).state_dict().items()}
    for kind in ("exp_avg", "exp_avg_sq", "steps"):
        wanted |= {f"{kind}.{name}": value if kind != "steps" else torch.zeros(()) for name, value in trained.items()}
    wanted |= dict.fromkeys(("guard.mean_norm", "guard.steps_seen"), torch.zeros(()))
    assert {name: value.shape for name, value in held.items()} == {name: value.shape for name, value in wanted.items()}
    assert held["guard.steps_seen"] == 4 and all(held[name] == 4 for name in held if name.startswith("steps."))
    assert held["guard.mean_norm"] == pytest.approx(sum(row["grad_norm"] for row in run.read_metrics()[:4]) / 4, rel=1e-5)


def test_each_state_of_a_checkpoint_is_used(make_run, start, tmp_path):
    """With one of them at 0 the run ends elsewhere; with one of them away it does not go on."""
    stopped = stopped_at_four(make_run, start, "stopped")

    def ended(name, change):
        """Exit code and end of a copy whose checkpoint has only the tensors that `change` returns."""
        run = RunFolder.open(Path(shutil.copytree(stopped.path, tmp_path / name / stopped.path.name)))
        for file in (run.checkpoints / "step-00000004").glob("*.safetensors"):
            save_file(change(load_file(file)), file)
        manifest.seal(run.checkpoints / "step-00000004", run_id=run.read_spec().run_id, step=4)
        code = start(run, checkpoint_minutes=0, spike_factor=9.0, before=keep).exit_code()
        if code != EXIT_FINISHED:
            return code
        return losses(run), [tensor.sum().item() for tensor in checkpointed(run, 8).values()]

    whole = ended("whole", lambda held: held)
    assert whole == ended("again", lambda held: held)
    for state in STATES:
        zeroed = lambda held, state=state: {n: torch.zeros_like(t) if n.startswith(state) else t for n, t in held.items()}  # noqa: E731
        assert ended(f"{state} 0", zeroed) not in (whole, 1), state
        assert ended(f"no {state}", lambda held, state=state: {n: t for n, t in held.items() if not n.startswith(state)}) == 1


@pytest.mark.parametrize(("met", "told"), [
    ([OSError(28, "No space left on device")], OSError), ([ValueError("a"), OSError(5, "Input/output error")], OSError),
    ([ValueError("a")], checkpoint.dcp.CheckpointException),
])  # fmt: skip
def test_what_the_disk_says_is_told_of_all_that_processes_met(save, monkeypatch, met, told):
    def fail(*given, **named):
        raise checkpoint.dcp.CheckpointException("write", {rank: (error, None) for rank, error in enumerate(met)})

    monkeypatch.setattr(checkpoint.dcp, "save", fail)
    with pytest.raises((OSError, checkpoint.dcp.CheckpointException)) as raised:
        save(1)
    assert type(raised.value) is told and save.checkpoints.steps() == []
    assert told is not OSError or raised.value is met[-1]
