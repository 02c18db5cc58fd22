"""PaTH attention in PyTorch against its definition in fp64, fla's own reference, and itself in pieces."""

import pytest
import torch

from kernels.fla_cpu.install import install
from kernels.fla_cpu.path_attention import parallel_path_attn, path_attention

B, T, H, D = 2, 150, 2, 16


def inputs(dtype=torch.float64):
    """Return q, k, v, w, beta, log_fgate. Some maps turn a direction round (beta near 2), some leave it."""
    torch.manual_seed(0)
    q, k, v, w = (torch.randn(B, T, H, D, dtype=torch.float64) for _ in range(4))
    beta = 2 * torch.sigmoid(3 * torch.randn(B, T, H, dtype=torch.float64))
    log_fgate = torch.nn.functional.logsigmoid(torch.randn(B, T, H, dtype=torch.float64))
    return [x.to(dtype) for x in (q, k, v, w / w.norm(dim=-1, keepdim=True), beta, log_fgate)]


def by_definition(q, k, v, w, beta, log_fgate):
    """Move all keys by the map of one token after another."""
    moved, cum, outputs = k[:, :0], log_fgate.cumsum(1), []
    for t in range(T):
        moved = moved - beta[:, t, None, :, None] * w[:, t, None] * (moved * w[:, t, None]).sum(-1, keepdim=True)
        moved = torch.cat([moved, k[:, t, None]], 1)
        logits = ((moved * q[:, t, None]).sum(-1) + cum[:, t, None] - cum[:, : t + 1]) / D**0.5
        outputs.append((logits.softmax(1)[..., None] * v[:, : t + 1]).sum(1))
    return torch.stack(outputs, 1), moved


def with_gradients(function, arguments):
    leaves = [x.clone().requires_grad_() for x in arguments]
    o, moved = function(*leaves)
    torch.manual_seed(1)
    loss = (o * torch.randn(o.shape)).sum() + (moved * torch.randn(moved.shape)).sum()
    return (o.detach(), moved.detach(), *torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_path_attention_equals_its_definition(dtype, tolerance):
    found = with_gradients(path_attention, inputs(dtype))
    expected = with_gradients(by_definition, inputs())
    for name, a, e in zip(("o", "moved", "dq", "dk", "dv", "dw", "dbeta", "dgate"), found, expected, strict=True):
        error = (a.double() - e).abs().max() / e.abs().max()
        assert error < tolerance, f"{name}: relative error {error:.2e}"


def test_flas_reference_agrees():
    install()
    from fla.ops.path_attn.naive import naive_path_attn

    values = inputs(torch.float32)
    assert torch.allclose(parallel_path_attn(*values)[0], naive_path_attn(*values, D**-0.5), atol=1e-5)
    with pytest.raises(NotImplementedError, match="cu_seqlens"):
        parallel_path_attn(*values, cu_seqlens=torch.tensor([0, T]))


def test_tokens_follow_on_moved_keys_and_padding_is_not_seen():
    q, k, v, w, beta, log_fgate = inputs()
    whole, moved = path_attention(q, k, v, w, beta, log_fgate)
    parts, keys, end = [], None, 0
    for length in (70, 1, 1, 78):
        start, end = end, end + length
        new = [x[:, start:end] for x in (q, k)] + [v[:, :end]] + [x[:, start:end] for x in (w, beta)] + [log_fgate[:, :end]]
        o, keys = path_attention(*new, moved_k=keys)
        parts.append(o)
    assert torch.allclose(torch.cat(parts, 1), whole) and torch.allclose(keys, moved)
    padded = path_attention(q, k, v, w, beta, log_fgate, seq_start=torch.tensor([0, 90]))[0]
    alone = path_attention(*(x[1:, 90:] for x in (q, k, v, w, beta, log_fgate)))[0]
    assert torch.allclose(padded[0], whole[0]) and torch.allclose(padded[1:, 90:], alone)
    assert torch.isfinite(padded).all()


def test_bf16_inputs_are_summed_in_fp32():
    q, k, v, w, beta, log_fgate = inputs(torch.float32)
    q, k, v = (x.bfloat16() for x in (q, k, v))
    o, moved = path_attention(q, k, v, w, beta, log_fgate)
    exact, _ = path_attention(*(x.double() for x in (q, k, v, w, beta, log_fgate)))
    assert o.dtype == torch.bfloat16 and moved.dtype == torch.float32
    assert (o.double() - exact).abs().max() < 2**-8 * exact.abs().max()
