"""`python -m experiments.benchmark`: a real measurement at the smallest scale, and what becomes of its rows."""

import csv
import sys
from pathlib import Path

import pytest

from experiments.benchmark.__main__ import main


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    return main()


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_steps_are_timed_and_rows_appended(monkeypatch, tmp_path, capsys):
    out = tmp_path / "rows.csv"
    size = ("--scale", "tiny", "--seq-len", "32", "--device", "cpu", "--warmup", "0", "--steps", "1", "--out", str(out))
    assert call(monkeypatch, "fox_pro", "transformer_llama", "--prune", *size) == 0
    assert call(monkeypatch, "fox_llama", "--sequences", "2", "--micro-batches", "3", *size) == 0
    rows = read(out)
    assert [(row["model"], row["prune"], row["micro_batches"]) for row in rows] == [
        ("fox_pro", "True", "1"), ("transformer_llama", "False", "1"), ("fox_llama", "False", "3"),
    ]  # fmt: skip
    for row, tokens in zip(rows, (32, 32, 192), strict=True):
        assert float(row["tokens_per_s"]) == pytest.approx(1000 * tokens / float(row["step_ms"]), rel=0.01)
    capsys.readouterr()
    assert call(monkeypatch, "--show", "--out", str(out)) == 0
    assert "transformer_llama" in capsys.readouterr().out


def test_mistakes_are_errors_of_one_line(monkeypatch, tmp_path, capsys):
    out = tmp_path / "rows.csv"
    assert call(monkeypatch, "--show", "--out", str(out)) == 2
    assert call(monkeypatch, "fox", "--device", "cpu", "--out", str(out)) == 2
    out.write_text("date,model\n")
    size = ("--scale", "tiny", "--seq-len", "32", "--device", "cpu", "--warmup", "0", "--steps", "1")
    assert call(monkeypatch, "fox_llama", *size, "--out", str(out)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and all(error.startswith("error:") for error in errors)
    assert "no rows there" in errors[0] and "fox: no such model" in errors[1] and "other columns" in errors[2]
    assert out.read_text() == "date,model\n"
