"""The benchmark's table compares within shape and operation; its rotary embedding is the one that the softmax rows claim."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from kernels.benchmark.rows import Row
from kernels.stick_breaking.benchmark import BASELINE, table

ROW = Row(
    "2026-01-01T00:00:00+00:00", "abc", "some GPU", "2", "3", BASELINE, "forward", "any", "bfloat16",
    2, 16_384, 24, 64, 1.0, 2.0, 3.0, 450.0, float("nan"),
)  # fmt: skip

ROTATION = """
import torch
from kernels.stick_breaking.benchmark import _Rotate
x, dy = torch.randn(2, 37, 3, 16, requires_grad=True), torch.randn(2, 37, 3, 16)
angles = torch.arange(37)[:, None] * 0.7 ** torch.arange(8)
y = _Rotate.apply(x, torch.cat([angles.cos(), angles.sin()], -1))
cos, sin, (first, second) = angles.cos()[:, None], angles.sin()[:, None], x.split(8, -1)
expected = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
torch.testing.assert_close(y, expected)
torch.testing.assert_close(torch.autograd.grad(y, x, dy), torch.autograd.grad(expected, x, dy))
"""


def test_times_are_relative_to_the_same_shape_and_operation() -> None:
    ours = replace(ROW, provider="ours", gates="long", ms_q50=3.0)
    shown = table([ROW, replace(ROW, operation="forward+backward", ms_q50=9.0), ours, replace(ROW, seq_len=8, ms_q50=7.0)])
    assert "| long | ours | 3.000 (1.000-3.000) | 450 | 1.50 |" in shown


def test_rotation() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ROTATION],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
