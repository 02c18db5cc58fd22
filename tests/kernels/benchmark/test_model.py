"""Training steps of fla's FoX, with its attention and with ours, on a stand-in for its model."""

import os
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch import nn

from kernels.benchmark import __main__ as command
from kernels.benchmark import model
from kernels.benchmark.rows import model_table
from results.measured import SCHEMAS


class StandIn(nn.Module):
    """A loss of one; with our backend `off` more."""

    def __init__(self, off: float) -> None:
        super().__init__()
        self.weight, self.off, self.calls = nn.Parameter(torch.ones(())), off, []

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        assert input_ids is labels and self.weight.grad is None and torch.is_autocast_enabled("cpu")
        self.calls.append((tuple(input_ids.shape), os.environ["FLA_FORGETTING_ATTENTION"]))
        return SimpleNamespace(loss=self.weight.float() + self.off * (self.calls[-1][1] == "1"))


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setenv("FLA_FORGETTING_ATTENTION", "as it was")
    made = []

    def use(off: float) -> list[StandIn]:
        monkeypatch.setattr(model, "make_model", lambda d, heads: made.append(StandIn(off)) or made[-1])
        return made

    return use


def test_both_backends_take_the_same_steps(stand_in):
    made = stand_in(5e-4)
    rows = list(model.measure_model(((2, 8, 3, 4), (1, 4, 1, 4)), "cpu"))
    each = model.STEPS * (1 + model.SAMPLES)
    assert [built.calls for built in made] == [
        [((B, T), on) for on in ("0", "1") for _ in range(each)] for B, T in ((2, 8), (1, 4))
    ]
    assert [(row["provider"], row["batch"], row["seq_len"]) for row in rows] == [
        (name, B, T) for B, T in ((2, 8), (1, 4)) for name in model.BACKENDS
    ]
    assert all(0 < row["ms_q20"] <= row["ms_q50"] <= row["ms_q80"] for row in rows) and len({row["date"] for row in rows}) == 1
    SCHEMAS[model.KIND].validate(pd.DataFrame(rows))


def test_backends_that_compute_something_else_are_refused(stand_in):
    stand_in(2e-3)
    with pytest.raises(RuntimeError, match=r"losses of fla and fla, ours as backend are 1\.0000 and 1\.0020"):
        list(model.measure_model(((1, 4, 1, 4),), "cpu"))


def test_without_fla_it_is_said(monkeypatch, capsys):
    def missing(d: int, heads: int) -> nn.Module:
        raise ImportError("no fla")

    monkeypatch.setattr(model, "make_model", missing)
    assert list(model.measure_model((), "cpu")) == []
    assert capsys.readouterr().out == "not measured: fla's FoX (no fla)\n"


def test_the_command_measures_it(monkeypatch, tmp_path):
    kept = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(model, "measure_model", lambda shapes: ("rows", shapes))
    monkeypatch.setattr("kernels.benchmark.times.keep", lambda kind, rows, *rest: kept.append((kind, rows, *rest)))
    command.measured(command.Options(modes=("model",), shape=((1, 2, 3, 4),), rows=tmp_path, code="abc"))
    assert kept == [("fla_model", ("rows", ((1, 2, 3, 4),)), "1 of 1: training steps of fla's FoX", "abc", tmp_path)]


def test_tokens_per_second_are_shown_by_backend_newest_rows():
    about = {"gpu": "g", "batch": 2, "seq_len": 1000, "num_heads": 3, "head_dim": 4}
    rows = [("3.6.0", "fla", 50.0), ("3.6.0", "fla", 40.0), ("3.6.0", "ours", 20.0), ("3.7.1", "ours", 10.0)]
    frame = pd.DataFrame([{**about, "triton": triton, "provider": name, "ms_q50": ms} for triton, name, ms in rows])
    assert model_table(frame).splitlines()[2:] == [
        "| GPU | Triton | B, T, H, D | fla | ours |",
        "| --- | --- | --- | --- | --- |",
        "| g | 3.6.0 | 2, 1000, 3, 4 | 50.0 | 100.0 |",
        "| g | 3.7.1 | 2, 1000, 3, 4 |  | 200.0 |",
    ]
