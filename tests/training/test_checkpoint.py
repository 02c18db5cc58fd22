"""Tests of which checkpoints are kept: only whole ones count, and the newest whole one is never lost."""

import itertools
import os
import shutil

import pytest
import torch

from tests.training.test_loop import slow, wait_for_step
from training import manifest
from training.checkpoint import Checkpoints
from training.distributed import World


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


def test_foreign_names_are_left_alone(save):
    for name in ("step-0000000x", "step-1", "notes"):
        (save.checkpoints.folder / name).mkdir(parents=True)
    save(1)
    assert save.checkpoints.steps() == [1] and (save.checkpoints.folder / "notes").is_dir()


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
