"""Mamba-2's recurrence against a token-by-token scan in float64."""

import pytest
import torch
from torch import Tensor

from kernels.ssd import ssd
from tests.kernels.exact import assert_exact, in_nan, on_both

B, SIZES = 2, (16, 8, 3)  # N, P, H
DECAYS = {
    "none": lambda *shape: torch.zeros(*shape),
    "mild": lambda *shape: -torch.rand(*shape),
    "strong": lambda *shape: -60 * torch.rand(*shape),
    "mixed": lambda *shape: torch.where(torch.rand(*shape) < 0.1, -60.0, -1e-3 * torch.rand(*shape)),
    "cut": lambda *shape: torch.where(torch.rand(*shape) < 0.05, -1e4, 0.0),
}


def scan(q, k, x, step, g, skip, state):
    """S_t = exp(g_t) S_{t-1} + k_t (step_t x_t)^T, o_t = S_t^T q_t + skip * x_t."""
    outputs = []
    for t in range(q.shape[1]):
        v = x[:, t] * step[:, t, :, None]
        state = state * g[:, t].exp()[..., None, None] + k[:, t, None, :, None] * v[:, :, None, :]
        outputs.append(torch.einsum("bn,bhnp->bhp", q[:, t], state) + skip[:, None] * x[:, t])
    return torch.stack(outputs, 1), state


def inputs(seq_len, decay="mild", sizes=SIZES, dtype=torch.float32, device="cpu") -> list[Tensor]:
    """q, k, x in `dtype`, the others in fp32 at least, as in a layer under autocast."""
    torch.manual_seed(seq_len)
    N, P, H = sizes
    q, k = torch.randn(2, B, seq_len, N).unbind()
    x, step = torch.randn(B, seq_len, H, P), torch.rand(B, seq_len, H)
    made = [q, k, x, step, DECAYS[decay](B, seq_len, H), torch.randn(H), torch.randn(B, H, N, P)]
    wide = torch.promote_types(dtype, torch.float32)
    return [y.to(device, dtype if i < 3 else wide) for i, y in enumerate(made)]


def compare(run, tolerance, *case, **where):
    assert_exact(in_nan(run, slice(3)), scan, inputs(*case, **where), tolerance)


@pytest.mark.parametrize(("device", "seq_len", "decay", "sizes", "dtype", "tolerance"), on_both(
    [
        (1, "mild", SIZES, torch.float32, 5e-6), (3, "strong", SIZES, torch.float64, 1e-13),
        (64, "none", SIZES, torch.float32, 5e-6), (65, "cut", SIZES, torch.float32, 5e-6),
        (200, "mixed", SIZES, torch.float32, 5e-6), (200, "strong", SIZES, torch.float32, 5e-6),
        (200, "cut", SIZES, torch.float64, 1e-13), (130, "mild", SIZES, torch.bfloat16, 6e-3),
    ],
    (
        (seq_len, decay, sizes, dtype, tolerance)
        for seq_len, sizes in ((1, (16, 16, 3)), (100, (64, 32, 3)), (128, (128, 64, 4)), (1000, (128, 64, 3)))
        for decay in DECAYS
        for dtype, tolerance in ((torch.bfloat16, 1.2e-2), (torch.float16, 2e-3), (torch.float32, 1e-4))
    ),
))  # fmt: skip
def test_equals_the_scan(device, seq_len, decay, sizes, dtype, tolerance):
    compare(ssd, tolerance, seq_len, decay, sizes, dtype, device)


def test_a_sequence_continues_from_its_state_and_starts_from_zeros():
    *tokens, skip, state = inputs(150)
    whole, last = ssd(*tokens, skip, state)
    outputs, reached = [], state
    for part in (slice(0, 90), slice(90, 91), slice(91, 150)):
        with torch.no_grad():
            o, reached = ssd(*(y[:, part] for y in tokens), skip, reached)
        outputs.append(o)
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(reached, last, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ssd(*tokens, skip), ssd(*tokens, skip, 0 * state))
    with torch.no_grad():
        assert torch.equal(ssd(*(y[:, :1] for y in tokens), skip)[1], ssd(*(y[:, :1] for y in tokens), skip, 0 * state)[1])
