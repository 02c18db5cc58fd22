"""The benchmark's table compares within shape and operation."""

from dataclasses import replace

from kernels.benchmark.rows import Row
from kernels.stick_breaking.benchmark import BASELINE, table

ROW = Row(
    "2026-01-01T00:00:00+00:00", "abc", "some GPU", "2", "3", BASELINE, "forward", "any", "bfloat16",
    2, 16_384, 24, 64, 1.0, 2.0, 3.0, 450.0, float("nan"),
)  # fmt: skip


def test_times_are_relative_to_the_same_shape_and_operation() -> None:
    ours = replace(ROW, provider="ours", gates="long", ms_q50=3.0)
    shown = table([ROW, replace(ROW, operation="forward+backward", ms_q50=9.0), ours, replace(ROW, seq_len=8, ms_q50=7.0)])
    assert "| long | ours | 3.000 (1.000-3.000) | 450 | 1.50 |" in shown
