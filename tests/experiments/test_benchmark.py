"""`python -m experiments.benchmark`: a real measurement at the smallest scale, and what becomes of its rows."""

import os
import signal
import sys

import pytest

from experiments.benchmark import evaluations, paths
from experiments.benchmark.__main__ import main
from models.forgetting_transformer import module
from results.measured import read
from training.signals import EXIT_REQUEUE
from training.step import Stepper


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


def test_evaluations_of_fresh_weights_are_timed(texts, tmp_path):
    wanted = ["fox_pro", "--scale", "tiny", "--data", f"text:{texts}", "--device", "cpu", "--rows", str(tmp_path)]
    assert evaluations.main([*wanted, "--new-tokens", "2"]) == 0
    rows = read("evaluations", tmp_path).set_index("evaluation")
    assert set(rows.index) == {"needle", "per_token_loss"}
    assert rows.seconds.gt(0).all() and rows.peak_memory_gib.isna().all()
    assert "max_new_tokens 2" in rows.what["needle"] and "num_documents 1" in rows.what["per_token_loss"]


def test_one_training_on_several_paths_is_compared(texts, tmp_path, capsys, monkeypatch):
    """On a CPU every path computes the same; the reference's backend is asked for all the same, and seeds differ."""
    size = ("fox_llama", "--scale", "tiny-short", "--steps", "5", "--device", "cpu", "--data", f"text:{texts}")
    folders = ("--corpora-dir", str(tmp_path / "corpora"), "--runs-dir", str(tmp_path / "runs"), "--rows", str(tmp_path))
    monkeypatch.setattr(module, "forgetting_attention", module.forgetting_attention)  # what a path changes ends with the test
    for other in (("--path", "fast"), ("--seed", "1"), ("--path", "reference")):
        assert paths.main([*size, *folders, *other]) == 0
    assert module.forgetting_attention.keywords == {"backend": "reference"}
    rows = read("path_curves", tmp_path)
    assert len(rows) == 15 and set(rows.path) == {"fast", "reference"}
    assert not list((tmp_path / "runs").rglob("spec.json"))  # the next training of the kind begins anew
    between = paths.differences(rows).loc["fox_llama"]
    assert between.largest["fast and reference"] == 0 < between.largest["two seeds, fast"]
    assert paths.main(["--show", "--rows", str(tmp_path)]) == 0
    assert "two seeds, fast" in capsys.readouterr().out


def test_a_stopped_training_of_a_path_leaves_no_rows_and_goes_on(texts, tmp_path, monkeypatch):
    """After its third step; nothing is compared with trainings of other lengths."""
    wanted = ["fox_llama", "--scale", "tiny-short", "--device", "cpu", "--data", f"text:{texts}"]
    wanted += ["--corpora-dir", str(tmp_path / "corpora"), "--runs-dir", str(tmp_path / "runs"), "--rows", str(tmp_path)]
    assert paths.main([*wanted, "--steps", "3"]) == 0
    step, begun = Stepper.run, []

    def stopped(self: Stepper, *arguments):  # type: ignore[no-untyped-def]
        begun.append(self)
        if len(begun) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *arguments)

    monkeypatch.setattr(Stepper, "run", stopped)
    assert paths.main([*wanted, "--steps", "5"]) == EXIT_REQUEUE
    assert len(read("path_curves", tmp_path)) == 3
    assert paths.main([*wanted, "--steps", "5"]) == 0
    assert len(begun) == 5
    rows = read("path_curves", tmp_path)
    assert list(rows.step) == [1, 2, 3, 1, 2, 3, 4, 5] and paths.differences(rows).empty
