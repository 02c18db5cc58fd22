"""Mamba-3's recurrence against its steps in fp64: outputs, states and gradients, and itself in pieces."""

import pytest
import torch

from kernels.trapezoidal_ssd import trapezoidal_ssd

B, T, H = 2, 150, 3
NAMES = ("o", "h", "key", "value", "dq", "dk", "dx", "dstep", "dshare", "dgate", "dskip", "dh", "dlast_k", "dlast_x")


def inputs(strength: float, sizes=(16, 8)):
    """Return q, k, x, step, share, log decay, skip, and the three parts of a state; decays of up to `strength` nats a token."""
    torch.manual_seed(0)
    N, P = sizes
    q, k, x = torch.randn(B, T, H, N), torch.randn(B, T, H, N), torch.randn(B, T, H, P)
    step, share, gate = torch.rand(3, B, T, H).unbind()
    state = torch.randn(B, H, N, P), torch.randn(B, H, N), torch.randn(B, H, P)
    return [q, k, x, step, share, -strength * gate, torch.randn(H), *state]


def run(q, k, x, step, share, gate, skip, *state):
    o, state = trapezoidal_ssd(q, k, x, step, share, gate, skip, state)
    return o, *state


def by_steps(q, k, x, step, share, gate, skip, h, last_k, last_x):
    outputs = []
    for t in range(q.shape[1]):
        kept = h + ((1 - share) * step)[:, t, :, None, None] * last_k[..., None] * last_x[..., None, :]
        last_k, last_x = k[:, t], x[:, t]
        new = (share * step)[:, t, :, None, None] * last_k[..., None] * last_x[..., None, :]
        h = gate[:, t, :, None, None].exp() * kept + new
        outputs.append((q[:, t, :, None] @ h)[:, :, 0] + skip[:, None] * last_x)
    return torch.stack(outputs, 1), h, last_k, last_x


def with_gradients(function, arguments):
    leaves = [x.detach().clone().requires_grad_() for x in arguments]
    results = function(*leaves)
    torch.manual_seed(1)
    loss = sum((y * torch.randint(-9, 10, y.shape).to(y)).sum() for y in results)
    return (*(y.detach() for y in results), *torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
@pytest.mark.parametrize("strength", [0.0, 0.1, 60.0])
def test_equals_its_steps(strength, dtype, tolerance):
    arguments = [x.to(dtype) for x in inputs(strength)]
    found = with_gradients(run, arguments)
    for name, a, e in zip(NAMES, found, with_gradients(by_steps, [x.double() for x in arguments]), strict=True):
        error = (a.double() - e).abs().max() / e.abs().max()
        assert error < tolerance, f"{name}: relative error {error:.2e}"


def test_a_sequence_goes_on_from_its_state():
    *tokens, skip, h, last_k, last_x = inputs(1.0)
    whole, *expected = run(*tokens, skip, h, last_k, last_x)
    state, outputs, start = (h, last_k, last_x), [], 0
    with torch.no_grad():
        for length in (70, 1, 1, 78):
            o, state = trapezoidal_ssd(*(y[:, start : start + length] for y in tokens), skip, state)
            outputs.append(o)
            start += length
    for a, e in zip((torch.cat(outputs, 1), *state), (whole, *expected), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)
    zeros = [torch.zeros_like(y) for y in state]
    for a, e in zip(trapezoidal_ssd(*tokens, skip), trapezoidal_ssd(*tokens, skip, zeros), strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float32, 1e-4)])
@pytest.mark.parametrize("strength", [0.1, 60.0])
def test_equals_its_steps_on_a_gpu(strength, dtype, tolerance):
    small = (0, 1, 2, 8, 9)  # q, k, x and those of the state are in the dtype of the products
    arguments = [x.to("cuda", dtype if i in small else torch.float32) for i, x in enumerate(inputs(strength, (128, 64)))]
    expected = with_gradients(by_steps, [x.double() for x in arguments])
    for name, a, e in zip(NAMES, with_gradients(run, arguments), expected, strict=True):
        error = (a.double() - e).norm() / e.norm()
        assert error < tolerance, f"{name}: relative error {error:.2e}"
