"""Samples kept between starts: whole lines survive, a cut one does not spoil its neighbours, another model's are not used."""

from pathlib import Path

import numpy as np
import pytest

from eval.shell.partial import Partial


@pytest.mark.parametrize("cut", ['{"key": "c", "rec', "\x00\x00\x00", '{"key": "c", "record": {}}'])
def test_a_line_cut_off_by_a_crash_is_dropped_for_good(cut, tmp_path: Path):
    path = tmp_path / "e.partial.jsonl"
    first = Partial(path, "x")
    first.add("a", {"n": 1})
    first.add("b", {"n": 2})
    with open(path, "a") as file:
        file.write(cut)
    second = Partial(path, "x")
    assert second.records == {"a": {"n": 1}, "b": {"n": 2}}
    second.add("c", {"n": 3})
    assert Partial(path, "x").records == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}


def test_samples_of_another_model_or_spec_are_not_used(tmp_path: Path):
    path = tmp_path / "e.partial.jsonl"
    one = Partial(path, "x")
    one.add("a", {})
    one.save_state({"total": np.ones(2)})
    other = Partial(path, "y")
    assert other.records == {}
    assert other.load_state() is None
    other.add("z", {})
    assert Partial(path, "y").records == {"z": {}}


def test_state_survives_and_damage_means_beginning_again(tmp_path: Path):
    path = tmp_path / "e.partial.jsonl"
    partial = Partial(path, "x")
    assert partial.load_state() is None
    partial.save_state({"total": np.arange(3.0), "done": np.array(7)})
    state = Partial(path, "x").load_state()
    assert state is not None
    assert state["total"].tolist() == [0.0, 1.0, 2.0]
    assert int(state["done"]) == 7
    saved = tmp_path / "e.partial.npz"
    saved.write_bytes(saved.read_bytes()[:50])
    assert Partial(path, "x").load_state() is None
    partial.discard()
    assert list(tmp_path.iterdir()) == []
