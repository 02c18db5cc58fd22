"""Mamba-3's recurrence against its steps in float64."""

import pytest
import torch
from torch import Tensor

from kernels.trapezoidal_ssd import trapezoidal_ssd
from tests.kernels.exact import assert_exact

B, H, N, P = 2, 3, 16, 8


def by_steps(q, k, x, step, share, g, skip, h, last_k, last_x):
    """h_t = exp(g_t) (h_{t-1} + (1 - share_t) step_t k_{t-1} x_{t-1}^T) + share_t step_t k_t x_t^T."""
    outputs = []
    for t in range(q.shape[1]):
        earlier = ((1 - share) * step)[:, t, :, None, None] * last_k[..., None] * last_x[..., None, :]
        last_k, last_x = k[:, t], x[:, t]
        own = (share * step)[:, t, :, None, None] * last_k[..., None] * last_x[..., None, :]
        h = g[:, t, :, None, None].exp() * (h + earlier) + own
        outputs.append((q[:, t, :, None] @ h)[:, :, 0] + skip[:, None] * last_x)
    return torch.stack(outputs, 1), h, last_k, last_x


def trapezoid(*given: Tensor):
    o, state = trapezoidal_ssd(*given[:7], given[7:])
    return o, *state


@pytest.mark.parametrize("strength", [0.0, 0.1, 60.0])
def test_mamba_3s_equals_its_steps(strength):
    torch.manual_seed(0)
    q, k = torch.randn(2, B, 150, H, N).unbind()
    x, (step, share, gate) = torch.randn(B, 150, H, P), torch.rand(3, B, 150, H).unbind()
    state = torch.randn(B, H, N, P), torch.randn(B, H, N), torch.randn(B, H, P)
    given = [q, k, x, step, share, -strength * gate, torch.randn(H), *state]
    assert_exact(trapezoid, by_steps, given, 3e-6)
    with torch.no_grad():
        first, state = trapezoidal_ssd(*(y[:, :70] for y in given[:6]), given[6], state)
        second, _ = trapezoidal_ssd(*(y[:, 70:] for y in given[:6]), given[6], state)
    torch.testing.assert_close(torch.cat([first, second], 1), trapezoid(*given)[0], rtol=1e-4, atol=1e-4)
