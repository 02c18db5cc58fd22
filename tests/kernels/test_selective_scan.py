"""Mamba's selective scan against a token-by-token scan in fp64: outputs, last states and gradients."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels import selective_scan as module
from kernels.selective_scan import selective_scan

NAMES = ("y", "state", "dx", "ddt", "dA", "dinto", "dout", "dskip", "dstate")
STEP_SIZES = {
    "tiny": lambda *shape: 1e-5 * torch.rand(*shape),  # all is remembered
    "mild": lambda *shape: 0.2 * torch.rand(*shape),
    "large": lambda *shape: 5 + 60 * torch.rand(*shape),  # all is forgotten at once
    "mixed": lambda *shape: torch.where(torch.rand(*shape) < 0.1, 60.0, 1e-3 * torch.rand(*shape)),
    "cut": lambda *shape: torch.where(torch.rand(*shape) < 0.05, 1e4, 0.0),
}


def scan(x, dt, A, into, out, skip, state):
    """h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t, y_t = C_t h_t + D x_t."""
    h, outputs = state.view(len(x), *A.shape), []
    for x_BC, dt_BC, into_BN, out_BN in zip(*(y.unbind(1) for y in (x, dt, into, out)), strict=True):
        h = (dt_BC[..., None] * A).exp() * h + (dt_BC * x_BC)[..., None] * into_BN[:, None]
        outputs.append((h @ out_BN[..., None])[..., 0] + skip * x_BC)
    return torch.stack(outputs, 1), h.flatten(1)


def inputs(seq_len: int, steps: str = "mild", channels: int = 6, states: int = 16, batch: int = 2) -> list[Tensor]:
    """A = -1 .. -N as in a new model, a little off."""
    torch.manual_seed(seq_len)
    A = -torch.arange(1.0, states + 1) * (0.5 + torch.rand(channels, states))
    into, out = torch.randn(2, batch, seq_len, states).unbind()
    x, dt = torch.randn(batch, seq_len, channels), STEP_SIZES[steps](batch, seq_len, channels)
    return [x, dt, A, into, out, torch.randn(channels), torch.randn(batch, channels * states)]


def with_gradients(function, arguments):
    leaves = [x.detach().clone().requires_grad_() for x in arguments]
    y, state = function(*leaves)
    torch.manual_seed(1)
    # of numbers that every dtype holds, which do not lie in their order
    weights = (torch.randint(-9, 10, result.mT.shape).to(result).mT for result in (y, state))
    loss = sum((result * weight).sum() for result, weight in zip((y, state), weights, strict=True))
    return y.detach(), state.detach(), *torch.autograd.grad(loss, leaves)


def errors_by_norm(arguments: list[Tensor], run=selective_scan) -> dict[str, float]:
    """Errors of `run` against the scan in fp64 of equally rounded inputs; x, dt, into and out are views with steps."""

    def stepped(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        views = [torch.cat([y, y.detach() * torch.nan], -1)[..., : y.shape[-1]] if y.ndim == 3 else y for y in leaves]
        return run(*views)

    exact, found = with_gradients(scan, [y.double() for y in arguments]), with_gradients(stepped, arguments)
    assert all(a.dtype == y.dtype for a, y in zip(found[2:], arguments, strict=True))
    errors = ((a.double() - e).norm() / e.norm().clamp(min=1e-3) for a, e in zip(found, exact, strict=True))
    return dict(zip(NAMES, (error.item() for error in errors), strict=True))


def rounded(arguments: list[Tensor], dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """x, into and out of a layer under autocast; the others are fp32."""
    return [y.to(device, dtype if i in (0, 3, 4) else torch.float32) for i, y in enumerate(arguments)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 3e-6), (torch.bfloat16, 3e-3)])
@pytest.mark.parametrize("steps", STEP_SIZES)
@pytest.mark.parametrize("seq_len", [1, 5, 64, 100, 257])
def test_equals_the_scan(seq_len, steps, dtype, tolerance):
    arguments = inputs(seq_len, steps)
    arguments = [y.double() for y in arguments] if dtype == torch.float64 else rounded(arguments, dtype)
    errors = errors_by_norm(arguments)
    assert max(errors.values()) < tolerance, errors


def test_gradients_are_those_of_the_output():
    arguments = [y.double().requires_grad_() for y in inputs(9, channels=3, states=4)]
    assert torch.autograd.gradcheck(selective_scan, arguments)


def test_segments_give_what_the_whole_does(monkeypatch):
    arguments = inputs(100)
    whole = with_gradients(selective_scan, arguments)
    monkeypatch.setattr(module, "SEGMENT_NUMBERS", 2 * 6 * 16 * 37)  # segments of 37 tokens
    for one, other in zip(whole, with_gradients(selective_scan, arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@given(
    seq_len=st.integers(2, 40),
    cut=st.integers(1, 39),
    steps=st.sampled_from(sorted(STEP_SIZES)),
    channels=st.integers(1, 5),
    states=st.integers(1, 6),
)
def test_a_sequence_continues_from_its_state_and_one_token_after_another(seq_len, cut, steps, channels, states):
    x, dt, A, into, out, skip, state = inputs(seq_len, steps, channels, states)
    with torch.no_grad():
        whole, last = selective_scan(x, dt, A, into, out, skip, state)
        for bounds in ((0, min(cut, seq_len - 1), seq_len), range(seq_len + 1)):
            outputs, reached = [], state
            for start, stop in pairwise(bounds):
                now = slice(start, stop)
                y, reached = selective_scan(x[:, now], dt[:, now], A, into[:, now], out[:, now], skip, reached)
                outputs.append(y)
            torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=1e-5, atol=1e-4)
            torch.testing.assert_close(reached, last, rtol=1e-5, atol=1e-4)


def starts_from_zeros(run, arguments: list[Tensor], tolerance: float = 1e-5) -> None:
    """Without a state, and gradients through the outputs alone."""
    *tokens, state = arguments
    leaves = [y.detach().requires_grad_() for y in tokens]
    y, last = run(*leaves, None)
    expected, exact = scan(*(leaf.double() for leaf in leaves), torch.zeros_like(state).double())
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(last.double(), exact, rtol=tolerance, atol=tolerance)
    for a, e in zip(*(torch.autograd.grad(result.sum(), leaves) for result in (y, expected)), strict=True):
        assert (a - e).norm() < tolerance * e.norm()


def test_starts_from_zeros_and_needs_no_gradient_of_the_state():
    starts_from_zeros(selective_scan, inputs(50))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-3)])
@pytest.mark.parametrize("steps", STEP_SIZES)
@pytest.mark.parametrize(
    ("seq_len", "channels", "states"),
    [(1, 1024, 16), (5, 40, 3), (64, 96, 16), (257, 1000, 16), (100, 33, 64), (4096, 1024, 16)],
)
def test_equals_the_scan_on_a_gpu(seq_len, channels, states, steps, dtype, tolerance):
    """A GPU's exponential is exact to 2^-22, and where all is remembered, as many of them multiply as there are tokens."""
    tolerance += seq_len * 2**-22 if steps == "tiny" else 0.0
    errors = errors_by_norm(rounded(inputs(seq_len, steps, channels, states), dtype, "cuda"))
    assert max(errors.values()) < tolerance, errors


@pytest.mark.gpu
def test_starts_from_zeros_and_continues_on_a_gpu():
    arguments = [y.cuda() for y in inputs(300, channels=200)]
    starts_from_zeros(selective_scan, arguments, 1e-4)
    x, dt, A, into, out, skip, state = arguments
    whole, last = selective_scan(x, dt, A, into, out, skip, state)
    outputs = []
    with torch.no_grad():
        for part in (slice(0, 90), *(slice(t, t + 1) for t in range(90, 100)), slice(100, 300)):
            y, state = selective_scan(x[:, part], dt[:, part], A, into[:, part], out[:, part], skip, state)
            outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), whole)
    torch.testing.assert_close(state, last)


@pytest.mark.gpu
def test_gradients_repeat_bit_for_bit():
    arguments = [y.cuda() for y in inputs(1000, channels=512)]
    for one, other in zip(*(with_gradients(selective_scan, arguments) for _ in range(2)), strict=True):
        assert torch.equal(one, other)
