"""The benchmark's rows: they survive the file, the newest wins, ratios compare within one run."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernels.benchmark.rows import BASELINE, Row, append_rows, draw, latest, ratio_to_baseline, read_rows, table

ROW = Row(
    "2026-01-01T00:00:00+00:00", "abc", "some GPU", "2", "3", BASELINE, "forward", "local to global", "bfloat16",
    2, 16_384, 24, 64, 1.0, 2.0, 3.0, 450.0, 1e-3,
)  # fmt: skip


def test_rows_round_trip_and_append(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    append_rows(path, [ROW])
    append_rows(path, [replace(ROW, provider="ours", ms_q50=4.0)])
    assert read_rows(path) == [ROW, replace(ROW, provider="ours", ms_q50=4.0)]
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


def test_ratio_is_within_one_run() -> None:
    later = replace(ROW, date="2026-01-02T00:00:00+00:00", ms_q50=1.0)
    ours = replace(later, provider="ours", ms_q50=0.5)
    rows = [ROW, later, ours]
    assert ratio_to_baseline(ours, rows) == pytest.approx(2.0)
    assert ratio_to_baseline(replace(ours, seq_len=7), rows) is None
    assert latest(rows) == [later, ours]
    assert "| ours | 0.500 (1.000-3.000) | 450 | 2.00 |" in table(rows)


def test_drawing_needs_no_gpu(tmp_path: Path) -> None:
    draw([ROW, replace(ROW, provider="ours")], tmp_path / "rows.png")
    assert (tmp_path / "rows.png").stat().st_size > 1000
