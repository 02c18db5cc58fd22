"""Mamba-2's recurrence against a token-by-token scan in fp64: outputs, states and gradients."""

import pytest
import torch

from kernels.ssd import ssd

B, H, N, P = 2, 3, 16, 8
NAMES = ("o", "state", "dq", "dk", "dv", "dg", "dstate")
DECAYS = {
    "none": lambda *shape: torch.zeros(*shape),
    "mild": lambda *shape: -torch.rand(*shape),
    "strong": lambda *shape: -60 * torch.rand(*shape),
    "mixed": lambda *shape: torch.where(torch.rand(*shape) < 0.1, -60.0, -1e-3 * torch.rand(*shape)),
    "cut": lambda *shape: torch.where(torch.rand(*shape) < 0.05, -1e4, 0.0),
}


def scan(q, k, v, g, state):
    """S_t = exp(g_t) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t."""
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None] + k[:, t, None, :, None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bn,bhnp->bhp", q[:, t], state))
    return torch.stack(outputs, 1), state


def inputs(seq_len, decay="mild"):
    torch.manual_seed(seq_len)
    q, k, v = torch.randn(B, seq_len, N), torch.randn(B, seq_len, N), torch.randn(B, seq_len, H, P)
    return q, k, v, DECAYS[decay](B, seq_len, H), torch.randn(B, H, N, P)


def with_gradients(function, arguments, dtype):
    leaves = [x.to(dtype).requires_grad_() for x in arguments]
    o, state = function(*leaves)
    torch.manual_seed(1)
    loss = (o * torch.randn(o.shape)).sum() + (state * torch.randn(state.shape)).sum()
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
    arguments = inputs(seq_len, decay)
    assert_close(with_gradients(ssd, arguments, dtype), with_gradients(scan, arguments, torch.float64), tolerance)


def test_gradients_are_those_of_the_output():
    arguments = [x.double().requires_grad_() for x in inputs(70)]
    assert torch.autograd.gradcheck(ssd, [x[:1] for x in arguments])


@pytest.mark.parametrize("strength", [0.0, 1.0, 5.0])
def test_the_gate_gradient_of_very_local_heads_is_as_exact_as_any(strength):
    """A gate of -5 lets a hundredth pass: what a token gives itself must not drown its gradient."""
    arguments = inputs(150)
    arguments = (*arguments[:3], arguments[3] - strength, arguments[4])
    actual, expected = (with_gradients(f, arguments, d)[5] for f, d in ((ssd, torch.float32), (scan, torch.float64)))
    assert (actual - expected).norm() < 1e-6 * expected.norm()


def test_bf16_inputs_are_computed_in_fp32_on_a_cpu():
    rounded = [x.bfloat16() for x in inputs(200)]
    actual = with_gradients(ssd, [*rounded[:3], *inputs(200)[3:]], torch.bfloat16)
    expected = with_gradients(scan, [x.bfloat16() for x in inputs(200)], torch.float64)
    assert actual[0].dtype == torch.bfloat16
    assert_close(actual, expected, 2**-7)


def test_a_sequence_continues_from_its_state():
    *tokens, state = inputs(150)
    whole, last = ssd(*tokens, state)
    first, middle = ssd(*(x[:, :90] for x in tokens), state)
    second, end = ssd(*(x[:, 90:] for x in tokens), middle)
    assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-4)
    assert torch.allclose(end, last, atol=1e-4)


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


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float32, 2e-3)])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("seq_len", [1, 100, 128, 1000])
def test_equals_the_scan_on_a_gpu(seq_len, decay, dtype, tolerance):
    """Errors relative to the norm: in bf16 single numbers of what cancels have no relative error."""
    torch.manual_seed(seq_len)
    q, k, v = torch.randn(B, seq_len, 64), torch.randn(B, seq_len, 64), torch.randn(B, seq_len, H, 64)
    gates, state = DECAYS[decay](B, seq_len, H), torch.randn(B, H, 64, 64)
    arguments = [x.to(dtype).cuda() for x in (q, k, v)] + [gates.cuda(), state.cuda()]
    leaves = [x.clone().requires_grad_() for x in arguments]
    exact = [x.double().requires_grad_() for x in arguments]
    results = []
    for function, inputs_ in ((ssd, leaves), (scan, exact)):
        o, final = function(*inputs_)
        torch.manual_seed(1)
        loss = (o * torch.randn(o.shape).to(o)).sum() + (final * torch.randn(final.shape).to(final)).sum()
        results.append((o, final, *torch.autograd.grad(loss, inputs_)))
    for name, a, e in zip(NAMES, *results, strict=True):
        assert (a.double() - e).norm() < tolerance * e.norm().clamp(min=1e-3), name
