"""`python -m experiments.benchmark`: a real measurement at the smallest scale, and what becomes of its rows."""

import sys

import pytest

from experiments.benchmark import main
from results.measured import read


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    return main()


def test_steps_are_timed_and_rows_added(monkeypatch, tmp_path, capsys):
    size = ("--scale", "tiny", "--seq-len", "32", "--device", "cpu", "--warmup", "0", "--steps", "1", "--rows", str(tmp_path))
    assert call(monkeypatch, "fox_pro", "transformer_llama", "--prune", *size) == 0
    assert call(monkeypatch, "fox_llama", "--sequences", "2", "--micro-batches", "3", *size) == 0
    assert call(monkeypatch, "fox_pro", "--prune", "--tight", *size) == 0
    rows = read("training_steps", tmp_path).set_index("model")
    pruned = {"fox_pro": True, "fox_pro, tightly pruned": True, "transformer_llama": False, "fox_llama": False}
    assert rows.prune.to_dict() == pruned
    assert rows.mfu.isna().all() and rows.commit.str.len().gt(0).all()
    for model, tokens in {"fox_pro": 32, "transformer_llama": 32, "fox_llama": 192}.items():
        row = rows.loc[model]
        assert row.tokens_per_s == pytest.approx(1000 * tokens / row.step_ms, rel=0.01)
    capsys.readouterr()
    assert call(monkeypatch, "--show", "--rows", str(tmp_path)) == 0
    assert "transformer_llama" in capsys.readouterr().out


def test_mistakes_are_errors_of_one_line(monkeypatch, tmp_path, capsys):
    assert call(monkeypatch, "--show", "--rows", str(tmp_path)) == 2
    assert call(monkeypatch, "fox", "--device", "cpu", "--rows", str(tmp_path)) == 2
    assert call(monkeypatch, "fox_pro", "--tight", "--device", "cpu", "--rows", str(tmp_path)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and all(error.startswith("error:") for error in errors)
    assert "no measurements" in errors[0] and "fox: no such model" in errors[1] and "give --prune too" in errors[2]
