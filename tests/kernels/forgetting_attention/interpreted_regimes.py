"""Every regime through the GPU kernels on a CPU: Triton's under its interpreter, Hopper's under ours. Run in a process of its
own by `test_without_gpu`, as pytest."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from kernels.forgetting_attention import (
    forgetting_attention,
    gpu,
    reference_attention,
)
from kernels.forgetting_attention.hopper import backward as hopper_backward
from kernels.forgetting_attention.hopper import forward as hopper_forward
from kernels.forgetting_attention.portable.prepare import prepare
from tests.kernels import quick_interpreter
from tests.kernels.forgetting_attention.gluon_interpreter import interpreted_gluon
from tests.kernels.forgetting_attention.regimes import (
    GRID,
    Case,
    Regime,
    assert_decoding_within,
    assert_within,
    out_of_range,
    overflow_of_a_training,
    regimes,
)

quick_interpreter.remember()
LENGTH = 270  # three tiles, the last with a few rows


class _ExactBuilder(InterpreterBuilder):
    """Triton's interpreter truncates bfloat16 and multiplies its bits as if they were integers; PyTorch does it right."""

    def cast_impl(self, src: TensorHandle, dst_type: Any) -> TensorHandle:
        names = str(src.dtype.scalar), str(dst_type.scalar)
        if names == ("fp32", "bf16"):
            bits = torch.tensor(src.data).bfloat16().view(torch.uint16).numpy()
            return TensorHandle(bits, dst_type.scalar)
        return super().cast_impl(src, dst_type)

    def create_dot(self, a: TensorHandle, b: TensorHandle, d: TensorHandle, *options: object) -> TensorHandle:
        a, b = (self.cast_impl(x, d.dtype) if str(x.dtype.scalar) == "bf16" else x for x in (a, b))
        return super().create_dot(a, b, d, *options)


@pytest.fixture(autouse=True, scope="module")
def _interpreters() -> Iterator[None]:
    builder = interpreter.interpreter_builder
    builder.__class__ = _ExactBuilder
    with interpreted_gluon():
        yield
    builder.__class__ = InterpreterBuilder


def attention(*inputs: Tensor, **options: Any) -> Tensor:
    """The kernels, whatever the device."""
    return forgetting_attention(*inputs, backend="triton", **options)


@pytest.fixture(params=["hopper", "triton"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(gpu, "_has_hopper_kernels", lambda q: request.param == "hopper" and q.shape[-1] >= 64)
    return request.param


def test_what_left_the_range_is_right(kernels: str) -> None:
    for case in (*out_of_range("cpu"), overflow_of_a_training("cpu")):
        assert_within(attention, case)


def test_only_rows_out_of_range_are_done_again() -> None:
    ordinary, _ = Regime(30.0, "one").make(256, 64, torch.bfloat16, "cpu", seed=4)
    redone = []
    for q, k, v, log_fgate, _ in (ordinary, *out_of_range("cpu")):
        prepared = prepare(log_fgate, 256, None, None, None, None, False)
        redone.append(hopper_forward.hopper_forward(q, k, v, prepared, 0.125)[2].flatten().tolist())
    assert redone == [[0, 0, 0, 0], *[[0, 0, 1, 1]] * 4]


@pytest.mark.parametrize("kernels", ["hopper"], indirect=True)
@pytest.mark.parametrize(("i", "regime"), enumerate(GRID), ids=str)
def test_every_regime_on_hopper(i: int, regime: Regime, kernels: str) -> None:
    case, options = regime.make(LENGTH, 64 if i % 4 else 128, torch.bfloat16, "cpu", seed=4)
    assert_within(attention, case, **options)


def test_contiguous_inputs_off_the_copy_engines_grid(kernels: str) -> None:
    case, _ = Regime(3.0, "one").make(130, 64, torch.bfloat16, "cpu", seed=4)
    off = [torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x) for x in case]
    assert all(x.data_ptr() % 16 for x in off) and all(x.is_contiguous() for x in off)
    assert torch.equal(attention(*off[:4]), attention(*case[:4]))


def test_gates_that_keep_nothing_give_values_back_as_they_were(kernels: str) -> None:
    case, _ = Regime(1.0, "twenty").make(LENGTH, 64, torch.bfloat16, "cpu", seed=4)
    q, k, v, log_fgate, _ = case
    assert (attention(q, k, v, log_fgate) == v).float().mean() > 0.99  # all but those beside much larger ones


@pytest.mark.parametrize("kernels", ["hopper"], indirect=True)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("everywhere", [False, True])
def test_sums_are_ordered_unless_asked_not_to(
    deterministic: bool, everywhere: bool, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, _ = Regime(3.0, "one").make(70, 64, torch.bfloat16, "cpu", seed=4)
    ordered, real = [], hopper_backward.hopper_backward
    monkeypatch.setattr(gpu, "hopper_backward", lambda *x: ordered.append(x[-1]) or real(*x))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: everywhere)
    assert_within(lambda *x: attention(*x, deterministic=deterministic), case)
    assert ordered == [deterministic or everywhere]


@pytest.mark.parametrize("kernels", ["hopper"], indirect=True)
@pytest.mark.parametrize(
    ("gates", "tolerance", "without"), [(-15.0, 8e-4, 1.1e-3), (-6.0, 1.5e-3, 1.6e-3), (4.0, 5e-3, None)], ids=str
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_rounding_takes_from_local_gates_gradients_is_put_back(
    head_dim: int, gates: float, tolerance: float, without: float | None, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`without`: more than that is the error if nothing is; where gates are open nothing is put back."""
    generator = torch.Generator().manual_seed(4)
    q, k, v, do = (torch.randn(1, LENGTH, 2, head_dim, generator=generator).bfloat16() for _ in range(4))
    inputs = [q, k, v, torch.nn.functional.logsigmoid(torch.randn(1, LENGTH, 2, generator=generator) + gates)]

    def gradient(of: Callable[..., Tensor], dtype: torch.dtype | None = None) -> Tensor:
        leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in inputs]
        return torch.autograd.grad(of(*leaves), leaves[3:], do.to(dtype or do.dtype))[0].double()

    exact = gradient(reference_attention, torch.float64)
    corrected = gradient(attention)
    monkeypatch.setattr(hopper_backward, "LEAST_DECAY", math.inf)
    uncorrected = gradient(attention)
    found = [((x - exact).norm() / exact.norm()).item() for x in (corrected, uncorrected)]
    assert found[0] < tolerance, found
    assert torch.equal(corrected, uncorrected) if without is None else found[1] > without, found


def test_rows_over_five_tiles(kernels: str) -> None:
    """In the loop before the diagonal the decays of the next tile are loaded a step ahead, from the third tile on."""
    generator = torch.Generator().manual_seed(4)
    q, k, v, do = (torch.randn(1, 600, 1, 64, generator=generator).bfloat16() for _ in range(4))
    assert_within(attention, Case(q, k, v, torch.full((1, 600, 1), -0.004), do))


def test_half_precision(kernels: str) -> None:
    case, _ = Regime(3.0, "mixture").make(LENGTH, 64, torch.float16, "cpu", seed=4)
    assert_within(attention, case)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(regime=regimes(), seed=st.integers(0, 1000), length=st.integers(1, LENGTH))
def test_no_counterexample(kernels: str, regime: Regime, seed: int, length: int) -> None:
    case, options = regime.make(length, 64 if kernels == "hopper" else 16, torch.bfloat16, "cpu", seed)
    assert_within(attention, case, **options)


@pytest.mark.parametrize("regime", [r for r in GRID if r.limits != "documents"][::2], ids=str)
def test_decoding(regime: Regime) -> None:
    case, options = regime.make(LENGTH, 16, torch.bfloat16, "cpu", seed=4)
    assert_decoding_within(attention, case, **options)
