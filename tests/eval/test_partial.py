"""Samples kept between starts: whole lines survive, a cut one does not spoil its neighbours, another model's are not used."""

import numpy as np
import pytest

from eval.runner.partial import Partial


@pytest.mark.parametrize("cut", ['{"key": "c", "rec', "\x00\x00\x00", '{"key": "c", "record": {}}'])
def test_a_line_cut_off_by_a_crash_is_dropped_for_good(cut, tmp_path):
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


def test_sums_and_samples_are_of_one_model_and_spec(tmp_path):
    path = tmp_path / "e.partial.jsonl"
    one = Partial(path, "x")
    assert one.load_state() is None
    one.add("a", {})
    one.save_state({"total": np.arange(3.0), "done": np.array(7)})
    state = Partial(path, "x").load_state()
    assert state["total"].tolist() == [0.0, 1.0, 2.0] and int(state["done"]) == 7
    other = Partial(path, "y")
    assert other.records == {} and other.load_state() is None
    other.add("z", {})
    assert Partial(path, "y").records == {"z": {}}
    saved = tmp_path / "e.partial.npz"
    saved.write_bytes(saved.read_bytes()[:50])
    assert Partial(path, "x").load_state() is None
    one.discard()
    assert list(tmp_path.iterdir()) == []
