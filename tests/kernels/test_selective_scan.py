"""Mamba's selective scan against a token-by-token scan in float64."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kernels import selective_scan as module
from kernels.selective_scan import selective_scan
from tests.kernels.exact import assert_exact, in_nan, on_both, with_gradients

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


def inputs(seq_len, steps="mild", sizes=(6, 16), dtype=torch.float32, device="cpu") -> list[Tensor]:
    """A = -1 .. -N as in a new model, a little off; x, into and out in `dtype`, as in a layer under autocast."""
    torch.manual_seed(seq_len)
    C, N = sizes
    A = -torch.arange(1.0, N + 1) * (0.5 + torch.rand(C, N))
    into, out = torch.randn(2, 2, seq_len, N).unbind()
    x, dt = torch.randn(2, seq_len, C), STEP_SIZES[steps](2, seq_len, C)
    made = [x, dt, A, into, out, torch.randn(C), torch.randn(2, C * N)]
    wide = torch.promote_types(dtype, torch.float32)
    return [y.to(device, dtype if i in (0, 3, 4) else wide) for i, y in enumerate(made)]


def compare(run, tolerance, *case, **where):
    *tokens, skip, state = inputs(*case, **where)
    x, dt, A, into, out = tokens
    views = in_nan(lambda x, dt, into, out, *rest: run(x, dt, rest[0], into, out, *rest[1:]), slice(4))
    plain = lambda x, dt, into, out, A, *rest: scan(x, dt, A, into, out, *rest)  # noqa: E731
    assert_exact(views, plain, [x, dt, into, out, A, skip, state], tolerance)


SIZES = (6, 16)


@pytest.mark.parametrize(("device", "seq_len", "steps", "sizes", "dtype", "tolerance"), on_both(
    [
        (1, "mild", SIZES, torch.float32, 3e-6), (5, "cut", SIZES, torch.float64, 1e-13),
        (64, "tiny", SIZES, torch.float32, 3e-6), (100, "large", SIZES, torch.float32, 3e-6),
        (257, "mixed", SIZES, torch.float32, 3e-6), (257, "cut", SIZES, torch.float32, 3e-6),
        (100, "mild", SIZES, torch.bfloat16, 3e-3),
    ],
    (
        # A GPU's exponential is exact to 2^-22, and where all is remembered, as many multiply as there are tokens.
        (seq_len, steps, sizes, dtype, tolerance + seq_len * 2**-22 * (steps == "tiny"))
        for seq_len, sizes in ((1, (1024, 16)), (5, (40, 3)), (257, (1000, 16)), (100, (33, 64)), (4096, (1024, 16)))
        for steps in STEP_SIZES
        for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 3e-3))
    ),
))  # fmt: skip
def test_equals_the_scan(device, seq_len, steps, sizes, dtype, tolerance):
    compare(selective_scan, tolerance, seq_len, steps, sizes, dtype, device)


def test_segments_give_what_the_whole_does(monkeypatch):
    whole = with_gradients(selective_scan, inputs(100))
    monkeypatch.setattr(module, "SEGMENT_NUMBERS", 2 * 6 * 16 * 37)  # segments of 37 tokens
    for one, other in zip(whole, with_gradients(selective_scan, inputs(100)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", STEP_SIZES)
def test_a_sequence_continues_from_its_state_and_one_token_after_another(steps):
    continues(inputs(30, steps, (4, 5)), (0, 1, 30), (0, 17, 30), range(31))


def continues(arguments, *cuts):
    x, dt, A, into, out, skip, state = arguments
    with torch.no_grad():
        whole, last = selective_scan(x, dt, A, into, out, skip, state)
        for bounds in cuts:
            outputs, reached = [], state
            for start, stop in pairwise(bounds):
                now = slice(start, stop)
                y, reached = selective_scan(x[:, now], dt[:, now], A, into[:, now], out[:, now], skip, reached)
                outputs.append(y)
            torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=1e-5, atol=1e-4)
            torch.testing.assert_close(reached, last, rtol=1e-5, atol=1e-4)


def starts_from_zeros(run, arguments) -> None:
    *tokens, state = arguments
    without, zeros = (with_gradients(lambda *x, s=s: run(*x, s), tokens) for s in (None, torch.zeros_like(state)))
    for one, other in zip(without, zeros, strict=True):
        torch.testing.assert_close(one, other)


def test_starts_from_zeros():
    starts_from_zeros(selective_scan, inputs(50))


@pytest.mark.gpu
def test_starts_continues_and_repeats_on_a_gpu():
    arguments = inputs(300, sizes=(200, 16), device="cuda")
    starts_from_zeros(selective_scan, arguments)
    continues(arguments, (0, 90, *range(91, 100), 300))
    first, again = (with_gradients(selective_scan, arguments) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
