"""Wall attention in PyTorch against its definition in fp64, fla's own reference, and itself in pieces."""

import pytest
import torch
import torch.nn.functional as F

from kernels.fla_cpu.install import install
from kernels.fla_cpu.wall_attention import parallel_wall_attn, wall_attention

B, T, H, D = 2, 150, 2, 16


def inputs(bias: float, dtype=torch.float32):
    """Return q, k, v, g. Some channels fade within a token, some never, by the bias of the gates."""
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(B, T, H, D, dtype=torch.float64) for _ in range(4))
    return [x.to(dtype) for x in (3 * q, k, v, F.logsigmoid(bias + 3 * g))]


def by_definition(q, k, v, g):
    """Fade all keys by the gates of one token after another."""
    faded, outputs = k[:, :0], []
    for t in range(T):
        faded = torch.cat([faded * g[:, t, None].exp(), k[:, t, None]], 1)
        weights = ((faded * q[:, t, None]).sum(-1) / D**0.5).softmax(1)
        outputs.append((weights[..., None] * v[:, : t + 1]).sum(1))
    return torch.stack(outputs, 1), faded


def with_gradients(function, arguments):
    leaves = [x.clone().requires_grad_() for x in arguments]
    o, faded = function(*leaves)
    torch.manual_seed(1)
    loss = (o * torch.randn(o.shape)).sum() + (faded * torch.randn(faded.shape)).sum()
    return (o.detach(), faded.detach(), *torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("bias", [8.0, 2.0, -100.0])
def test_wall_attention_equals_its_definition(bias):
    found = with_gradients(wall_attention, inputs(bias))
    expected = with_gradients(by_definition, [x.double() for x in inputs(bias)])
    for name, a, e in zip(("o", "faded", "dq", "dk", "dv", "dg"), found, expected, strict=True):
        error = (a.double() - e).abs().max() / e.abs().max().clamp(min=1e-30)
        assert error < 2e-6, f"{name}: relative error {error:.2e}"


def test_flas_reference_agrees(monkeypatch):
    install()
    from fla.ops.wall_attn import naive

    values = inputs(2.0)
    monkeypatch.setattr(naive, "chunk_global_cumsum", lambda g, scale, cu_seqlens: g.cumsum(1) * scale)  # theirs is for GPUs
    torch.testing.assert_close(parallel_wall_attn(*values), naive.naive_wall_attn(*values, scale=D**-0.5), rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError, match="cu_seqlens"):
        parallel_wall_attn(*values, cu_seqlens=torch.tensor([0, T]))


def test_tokens_follow_on_faded_keys_and_padding_is_not_seen():
    q, k, v, g = inputs(2.0)
    whole, faded = wall_attention(q, k, v, g)
    parts, keys, end = [], None, 0
    for length in (70, 1, 1, 78):
        start, end = end, end + length
        o, keys = wall_attention(*(x[:, start:end] for x in (q, k)), v[:, :end], g[:, start:end], faded_k=keys)
        parts.append(o)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    torch.testing.assert_close(keys, faded)
    padded = wall_attention(q, k, v, g, seq_start=torch.tensor([0, 90]))[0]
    alone = wall_attention(*(x[1:, 90:] for x in (q, k, v, g)))[0]
    torch.testing.assert_close(padded[0], whole[0])
    torch.testing.assert_close(padded[1:, 90:], alone)
    assert torch.isfinite(padded).all()


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [8.0, 2.0, -100.0])
def test_flas_kernel_agrees_on_a_gpu(bias):
    from models.wall_attention.module import FLOOR, attend

    values = inputs(bias)
    values[3] = values[3].clamp(min=FLOOR)

    def found_and_gradients(function, values):
        leaves = [x.requires_grad_() for x in values]
        o = function(*leaves)
        return (o, *torch.autograd.grad((o * torch.arange(D).to(o)).sum(), leaves))

    expected = found_and_gradients(lambda *x: by_definition(*x)[0], [x.double() for x in values])
    found = found_and_gradients(attend, [x.cuda() for x in values])
    for name, a, e in zip(("o", "dq", "dk", "dv", "dg"), found, expected, strict=True):
        scale = e.norm()
        if name == "dg":  # what is left of sums of these
            scale = max(scale, (expected[1] * values[0]).norm())
        error = (a.cpu().double() - e).norm() / scale
        assert error < 5e-3, f"{name}: relative error {error:.2e}"


@pytest.mark.gpu
def test_gate_gradients_of_channels_that_fade_are_more_than_noise():
    """With keys and queries in 16 bits. The gradient is what is left of a sum over all later tokens, less than they round."""
    from models.wall_attention.module import FLOOR, attend

    torch.manual_seed(0)
    length, channels = 1024, 32
    q, k, v, do = (torch.randn(1, length, 1, channels, dtype=torch.float64).bfloat16() for _ in range(4))
    bias = 3 + 3 * torch.randn(channels, dtype=torch.float64)
    g = F.logsigmoid(bias + torch.randn(1, length, 1, channels, dtype=torch.float64)).clamp(min=FLOOR).float()
    values = [x.cuda() for x in (3 * q, k, v, g)]

    def gate_gradient(function, values):
        leaves = [x.clone().requires_grad_() for x in values]
        o = function(*leaves)
        return torch.autograd.grad(o, leaves[3], do.to(o))[0].double()[0, :, 0]

    expected = gate_gradient(lambda *x: wall_attention(*x)[0], [x.double() for x in values])
    error = (gate_gradient(attend, values) - expected).norm(dim=0) / expected.norm(dim=0)
    assert error[bias.argsort()][: channels // 4].median() < 0.05


def test_bf16_inputs_are_summed_in_fp32():
    q, k, v, g = inputs(2.0)
    q, k, v = (x.bfloat16() for x in (q, k, v))
    o, faded = wall_attention(q, k, v, g)
    exact, _ = wall_attention(q.float(), k.float(), v.float(), g)
    assert o.dtype == torch.bfloat16 and faded.dtype == torch.float32
    assert (o.float() - exact).abs().max() < 2**-8 * exact.abs().max()
