"""Mamba-2's recurrence against a token-by-token scan in fp64: outputs, states and gradients."""

import pytest
import torch
from torch import Tensor

from kernels.ssd import ssd

B, H, N, P = 2, 3, 16, 8
NAMES = ("o", "state", "dq", "dk", "dx", "dstep", "dg", "dskip", "dstate")
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


def inputs(seq_len: int, decay: str = "mild", state_size: int = N, channels: int = P, H: int = H) -> list[Tensor]:
    torch.manual_seed(seq_len)
    q, k = torch.randn(2, B, seq_len, state_size).unbind()
    x, step = torch.randn(B, seq_len, H, channels), torch.rand(B, seq_len, H)
    return [q, k, x, step, DECAYS[decay](B, seq_len, H), torch.randn(H), torch.randn(B, H, state_size, channels)]


def with_gradients(function, arguments):
    leaves = [x.detach().clone().requires_grad_() for x in arguments]
    o, state = function(*leaves)
    torch.manual_seed(1)
    weights = (torch.randint(-9, 10, y.shape).to(y) for y in (o, state))  # which every dtype holds
    loss = sum((y * weight).sum() for y, weight in zip((o, state), weights, strict=True))
    return o.detach(), state.detach(), *torch.autograd.grad(loss, leaves)


def assert_close(actual, expected, tolerance):
    """Largest error relative to the largest value."""
    for name, a, e in zip(NAMES, actual, expected, strict=True):
        error = (a.double() - e).abs().max() / e.abs().max().clamp(min=1e-3)
        assert error < tolerance, f"{name}: relative error {error:.2e}"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 5e-6)])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("seq_len", [1, 3, 64, 65, 200])
def test_equals_the_scan(seq_len, decay, dtype, tolerance):
    arguments = [x.to(dtype) for x in inputs(seq_len, decay)]
    assert_close(with_gradients(ssd, arguments), with_gradients(scan, [x.double() for x in arguments]), tolerance)


def test_gradients_are_those_of_the_output():
    arguments = [x.double() for x in inputs(70, state_size=3, channels=2)]
    arguments = [x.requires_grad_() for x in (*(x[:1] for x in arguments[:5]), arguments[5], arguments[6][:1])]
    assert torch.autograd.gradcheck(ssd, arguments)


@pytest.mark.parametrize("strength", [0.0, 1.0, 5.0])
def test_the_gate_gradient_of_very_local_heads_is_as_exact_as_any(strength):
    """A gate of -5 lets a hundredth pass: what a token gives itself must not drown its gradient."""
    arguments = inputs(150)
    arguments[4] -= strength
    actual, expected = (
        with_gradients(f, [x.to(d) for x in arguments])[6] for f, d in ((ssd, torch.float32), (scan, torch.float64))
    )
    assert (actual - expected).norm() < 1e-6 * expected.norm()


def test_bf16_inputs_are_computed_in_fp32_on_a_cpu():
    arguments = [x.bfloat16() if i in (0, 1, 2) else x for i, x in enumerate(inputs(200))]
    actual = with_gradients(ssd, arguments)
    assert actual[0].dtype == torch.bfloat16
    assert_close(actual, with_gradients(scan, [x.double() for x in arguments]), 2**-7)


def test_a_sequence_continues_from_its_state_and_one_token_after_another():
    q, k, x, step, g, skip, state = inputs(150)
    whole, last = ssd(q, k, x, step, g, skip, state)
    for parts in ((slice(0, 90), slice(90, 150)), (slice(0, 147), *(slice(t, t + 1) for t in range(147, 150)))):
        outputs, reached = [], state
        for part in parts:
            with torch.no_grad():
                o, reached = ssd(*(y[:, part] for y in (q, k, x, step, g)), skip, reached)
            outputs.append(o)
        assert torch.allclose(torch.cat(outputs, 1), whole, atol=1e-4)
        assert torch.allclose(reached, last, atol=1e-4)


def test_starts_from_zeros_and_needs_no_gradient_of_the_state():
    *tokens, state = inputs(150)
    for leaf in tokens:
        leaf.requires_grad_()
    o, _ = ssd(*tokens)
    expected, _ = scan(*(x.double() for x in tokens), torch.zeros_like(state).double())
    assert (o - expected).abs().max() < 1e-4
    given, reference = torch.autograd.grad(o.sum(), tokens), torch.autograd.grad(expected.sum(), tokens)
    for a, e in zip(given, reference, strict=True):
        assert (a - e).abs().max() < 1e-4 * e.abs().max()
    with torch.no_grad():
        one, first = ssd(*(x[:, :1] for x in tokens[:5]), tokens[5])
    assert torch.allclose(one, o[:, :1], atol=1e-5) and first.shape == state.shape


def errors_by_norm(
    seq_len: int, decay: str, dtype: torch.dtype, device: str, sizes: tuple[int, ...], run=ssd
) -> dict[str, float]:
    """Errors of `run` against the scan in fp64 of the same rounded inputs; q, k and x are views with steps, as in a layer."""
    arguments = [x.to(device, dtype if i < 3 else torch.float32) for i, x in enumerate(inputs(seq_len, decay, *sizes))]

    def stepped(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        views = (torch.cat([y, y.detach() * torch.nan], -1)[..., : y.shape[-1]] for y in leaves[:3])
        return run(*views, *leaves[3:])

    exact, found = with_gradients(scan, [y.double() for y in arguments]), with_gradients(stepped, arguments)
    errors = ((a.double() - e).norm() / e.norm().clamp(min=1e-3) for a, e in zip(found, exact, strict=True))
    return dict(zip(NAMES, (error.item() for error in errors), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1.2e-2), (torch.float16, 2e-3), (torch.float32, 1e-4)])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("seq_len", "sizes"), [(1, (16, 16)), (100, (64, 32)), (128, (128, 64, 4)), (1000, (128, 64))])
def test_equals_the_scan_on_a_gpu(seq_len, sizes, decay, dtype, tolerance):
    errors = errors_by_norm(seq_len, decay, dtype, "cuda", sizes)
    assert max(errors.values()) < tolerance, errors
