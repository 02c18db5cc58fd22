"""Every regime on the CPU path, and on a GPU. (The GPU kernels on a CPU: `interpreted_regimes`.)"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.benchmark.errors import make_regime, relative_errors
from kernels.forgetting_attention import forgetting_attention, gpu
from tests.kernels.forgetting_attention.oracle import NAMES
from tests.kernels.forgetting_attention.regimes import (
    GRID,
    Regime,
    assert_decoding_within,
    assert_within,
    out_of_range,
    overflow_of_a_training,
    regimes,
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_every_regime_on_a_cpu(dtype: torch.dtype) -> None:
    for regime in GRID[::4]:
        case, options = regime.make(270, 16, dtype, "cpu", seed=4)
        assert_within(forgetting_attention, case, **options)
        if regime.limits != "documents":
            assert_decoding_within(forgetting_attention, case, **options)
    for case in out_of_range("cpu"):
        assert_within(forgetting_attention, case)


@pytest.mark.gpu
def test_what_left_the_range_is_right() -> None:
    for case in (*out_of_range("cuda"), overflow_of_a_training("cuda")):
        assert_within(forgetting_attention, case)


@pytest.mark.gpu
@pytest.mark.parametrize("regime", GRID, ids=str)
@pytest.mark.parametrize("D", [32, 64, 128])
def test_every_regime(D: int, regime: Regime) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        case, options = regime.make(700, D, dtype, "cuda", seed=4)
        assert_within(forgetting_attention, case, **options)
        if regime.limits != "documents":
            assert_decoding_within(forgetting_attention, case, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("gates", ["very local", "local", "near 0.5", "medium"])
@pytest.mark.parametrize("D", [64, 128])
def test_hopper_kernels_are_as_exact_as_those_of_other_gpus(D: int, gates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    regime = make_regime(3.0, gates, D)
    found = relative_errors(forgetting_attention, regime)
    monkeypatch.setattr(gpu, "_has_hopper_kernels", lambda q: False)
    exact = relative_errors(forgetting_attention, regime)
    ratios = {name: x / y for name, x, y in zip(NAMES, found, exact, strict=True)}
    assert max(ratios.values()) < 1.5, ratios


@pytest.mark.gpu
@settings(max_examples=150)
@given(
    regime=regimes(),
    D=st.sampled_from((64, 128)),
    dtype=st.sampled_from((torch.bfloat16, torch.float16)),
    length=st.integers(1, 1500),
    seed=st.integers(0, 10_000),
)
def test_no_counterexample(regime: Regime, D: int, dtype: torch.dtype, length: int, seed: int) -> None:
    if dtype == torch.float16:  # dS of large values leaves its range, as it would in any kernel
        regime = Regime(min(regime.logit, 30.0), regime.gates, 1.0, regime.limits)
    case, options = regime.make(length, D, dtype, "cuda", seed)
    assert_within(forgetting_attention, case, **options)
