"""The kernel benchmarks' rows: the newest wins, ratios compare within one measuring, and they are drawn without a GPU."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from kernels.benchmark.records import records
from kernels.benchmark.rows import BASELINE, ROPE_BASELINE, compared, draw, table

ROOT = Path(__file__).parents[2]
ROW = {
    "gpu": "some GPU", "date": "2026-01-01T00:00:00+00:00", "provider": BASELINE, "operation": "forward",
    "gates": "local to global", "dtype": "bfloat16", "batch": 2, "seq_len": 16_384, "num_heads": 24, "head_dim": 64,
    "ms_q20": 1.0, "ms_q50": 2.0, "ms_q80": 3.0, "effective_tflops": 450.0, "max_error": 1e-3,
}  # fmt: skip


def test_ratio_is_within_one_measuring():
    later = {**ROW, "date": "2026-01-02T00:00:00+00:00", "ms_q50": 1.0}
    ours = {**later, "provider": "ours", "ms_q50": 0.5}
    rows = pd.DataFrame([ROW, later, ours, {**ours, "seq_len": 7, "max_error": float("nan")}])
    newest = compared(rows)
    assert list(newest.provider) == [BASELINE, "ours", "ours"] and list(newest.date.unique()) == [later["date"]]
    assert list(newest.ratio[:2]) == [1.0, 2.0] and pd.isna(newest.ratio.iloc[2])
    assert "| ours | 0.500 (1.000-3.000) | 450 | 2.00 | 1.0e-03 |" in table(rows)
    assert "| 2, 7, 24, 64 | forward | local to global | ours | 0.500 (1.000-3.000) | 450 |  |  |" in table(rows)


def test_the_record_has_the_repeats_of_each_commit_and_the_attempts():
    rows = []
    for commit, ms in (("aaa", 4.0), ("bbb", 2.0), ("bbb", 1.0), ("bbb", 1.6)):
        row = {**ROW, "created": f"2026-01-0{len(rows) // 2 + 1}", "commit": commit}
        rows += [row, {**row, "provider": "ours", "ms_q50": ms}, {**row, "provider": "ours, pruned", "gates": "open"}]
    attempt = {"created": "2026-01-01", "gpu": "some GPU", "version": "wild", "kernel": "forward", "head_dim": 64, "ms": 9.0}
    text = records(pd.DataFrame(rows), pd.DataFrame([{**attempt, "expected": "half", "outcome": "twice"}]))
    assert "| aaa | 0.500 | 1 |" in text and "| bbb | 1.250 (1.000 to 2.000) | 3 |" in text and "pruned" not in text
    assert "| 2026-01-01 | some GPU | wild | forward | 64 | 9.0 | half | twice |" in text


def test_stick_breaking_is_compared_with_softmax_that_knows_positions(tmp_path):
    softmax = {**ROW, "provider": ROPE_BASELINE, "gates": "any"}
    rows = pd.DataFrame([softmax, {**softmax, "provider": "ours", "gates": "long", "ms_q50": 4.0}])
    assert list(compared(rows).ratio) == [1.0, 0.5]
    draw(rows, tmp_path / "rows.png", "long", "logits")
    assert (tmp_path / "rows.png").stat().st_size > 1000


@pytest.mark.parametrize("module", ["kernels.benchmark", "experiments.benchmark"])
def test_the_committed_rows_are_shown_without_a_gpu(module):
    """And the committed picture and record are what is drawn from them."""
    drawn = [ROOT / "results" / "kernels" / name for name in ("attention.png", "records.md")]
    before = [path.read_bytes() for path in drawn]
    shown = subprocess.run([sys.executable, "-m", module, "--show"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "NVIDIA H200" in shown.stdout
    assert [path.read_bytes() for path in drawn] == before
