"""The kernel benchmarks: a provider that is wrong is not timed, the newest rows are shown, ratios compare within one
measurement, and what is committed is drawn without a GPU."""

from functools import partial

import pandas as pd
import pytest

from kernels.benchmark import attention, timing
from kernels.benchmark.rows import BASELINE, ROPE_BASELINE, compared, draw, error_table, times_table
from kernels.forgetting_attention import reference_attention
from kernels.stick_breaking import reference_attention as stick_reference
from results.measured import SCHEMAS, read

ROW = {
    "gpu": "some GPU", "triton": "3.6.0", "date": "2026-01-01T00:00:00+00:00", "provider": BASELINE, "operation": "forward",
    "gates": "local to global", "dtype": "bfloat16", "batch": 2, "seq_len": 16_384, "num_heads": 24, "head_dim": 64,
    "ms_q20": 1.0, "ms_q50": 2.0, "ms_q80": 3.0, "effective_tflops": 450.0, "max_error": 1e-3,
}  # fmt: skip


def test_the_newest_rows_are_shown_with_ratios_of_one_measurement():
    later = {**ROW, "date": "2026-01-02T00:00:00+00:00", "ms_q50": 1.0, "effective_tflops": 900.0}
    ours = {**later, "provider": "ours", "ms_q50": 0.5, "effective_tflops": 1800.0}
    rows = pd.DataFrame([ROW, later, ours, {**ours, "seq_len": 7}, {**ours, "operation": "one call"}])
    newest = compared(rows[rows.operation == "forward"])
    assert list(newest.provider) == [BASELINE, "ours", "ours"]
    assert list(newest.ratio[:2]) == [1.0, 2.0]
    assert pd.isna(newest.ratio.iloc[2])
    lines = times_table(rows, "forward").splitlines()
    assert lines[0].endswith("| batch | seq_len | num_heads | head_dim | gates | softmax cuDNN | ours |")
    assert lines[3] == "| some GPU | 3.6.0 | 2 | 16384 | 24 | 64 | local to global | 900 | 1800 |"
    softmax = {**ROW, "provider": ROPE_BASELINE, "gates": "any"}
    assert list(compared(pd.DataFrame([softmax, {**softmax, "provider": "ours", "ms_q50": 4.0}])).ratio) == [1.0, 0.5]


def test_the_committed_rows_are_shown(tmp_path):
    draw(read("forgetting_attention"), tmp_path / "attention.png")
    assert (tmp_path / "attention.png").stat().st_size > 1000
    shown = {kind: times_table(read(kind)) for kind in ("forgetting_attention", "stick_breaking", "mamba2_recurrence")}
    shown |= {"errors": error_table(read("errors_by_regime")), "decoding": times_table(read("decoding"), "decode")}
    assert all(page.count("\n") > 3 for page in shown.values())


@pytest.mark.parametrize(("kind", "regime"), [("forgetting_attention", "local to global"), ("stick_breaking", "long")])
def test_a_provider_that_is_wrong_is_not_timed(kind, regime):
    reference = attention.first(reference_attention if kind == "forgetting_attention" else stick_reference)
    check = lambda factor, *more: attention.check(  # noqa: E731
        kind, "ours", lambda *x: factor * reference(*(y.float() for y in x)), 16, regime, "cpu"
    )
    runs = {"forward": lambda: [1.0, 2.0, 3.0]}
    rows = partial(timing.timed, "ours", regime, (1, 2, 3, 4), "today", runs=runs, forward_flops=6e9)
    (row,) = rows(check=partial(check, 1.0))
    assert row["max_error"] < 1e-2
    assert row["effective_tflops"] == 3.0
    SCHEMAS[kind].validate(pd.DataFrame([row]))
    assert list(rows(check=partial(check, 1.1))) == []
