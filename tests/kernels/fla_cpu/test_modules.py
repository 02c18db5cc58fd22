"""Norms for CPUs against their definitions in float64, keys that fade or move in attention against theirs, and the dispatch."""

import pytest
import torch
import torch.nn.functional as F

from kernels.fla_cpu import modules
from kernels.fla_cpu.install import install
from kernels.fla_cpu.path_attention import path_attention
from kernels.fla_cpu.wall_attention import wall_attention
from tests.kernels.exact import assert_exact


def norm(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def test_norms():
    torch.manual_seed(0)
    x, z, weight, linear, bias = (torch.randn(size) for size in ((2, 5, 16), (2, 5, 16), (16,), (3, 16), (3,)))
    x = 0.1 * x
    own = lambda x, w: modules.rms_norm(x, w, eps=1e-2)  # noqa: E731
    assert_exact(own, lambda x, w: norm(x, w, 1e-2), [x, weight], 1e-6)
    own = lambda x, w, a, b: modules.rms_norm_linear(x, w, None, a, b, eps=1e-2)  # noqa: E731
    assert_exact(own, lambda x, w, a, b: F.linear(norm(x, w, 1e-2), a, b), [x, weight, linear, bias], 1e-6)
    for activation, gate in (("swish", F.silu), ("sigmoid", torch.sigmoid)):
        own = lambda x, z, w, a=activation: modules.rms_norm_gated(x, z, w, activation=a, eps=1e-2)  # noqa: E731
        assert_exact(own, lambda x, z, w, f=gate: norm(x, w, 1e-2) * f(z), [x, z, weight], 1e-6)

    def mamba(x, z, w):
        return modules.rmsnorm_fn(x, w, None, z, eps=1e-2, group_size=8, norm_before_gate=False)

    def groups(x, z, w):
        return norm((x * F.silu(z)).unflatten(-1, (2, 8)), 1.0, 1e-2).flatten(-2) * w

    assert_exact(mamba, groups, [x, z, weight], 1e-6)
    with pytest.raises(NotImplementedError, match="fused residual"):
        modules.rms_norm(x, weight, residual=x)


B, T, H, D = 2, 150, 2, 16


def faded(q, k, v, g):
    """Wall attention: every channel of a key fades by the gates of one token after another."""
    keys, outputs = k[:, :0], []
    for t in range(T):
        keys = torch.cat([keys * g[:, t, None].exp(), k[:, t, None]], 1)
        weights = ((keys * q[:, t, None]).sum(-1) / D**0.5).softmax(1)
        outputs.append((weights[..., None] * v[:, : t + 1]).sum(1))
    return torch.stack(outputs, 1), keys


def moved(q, k, v, w, beta, log_fgate):
    """PaTH attention: all keys are moved by the map of one token after another."""
    keys, cum, outputs = k[:, :0], log_fgate.cumsum(1), []
    for t in range(T):
        keys = keys - beta[:, t, None, :, None] * w[:, t, None] * (keys * w[:, t, None]).sum(-1, keepdim=True)
        keys = torch.cat([keys, k[:, t, None]], 1)
        logits = ((keys * q[:, t, None]).sum(-1) + cum[:, t, None] - cum[:, : t + 1]) / D**0.5
        outputs.append((logits.softmax(1)[..., None] * v[:, : t + 1]).sum(1))
    return torch.stack(outputs, 1), keys


def test_wall_and_path_attention():
    torch.manual_seed(0)
    q, k, v, w = torch.randn(4, B, T, H, D).unbind()
    for bias in (8.0, 2.0, -100.0):  # some channels fade within a token, some never
        assert_exact(wall_attention, faded, [3 * q, k, v, F.logsigmoid(bias + 3 * w)], 2e-6)
    walled = [q, k, v, F.logsigmoid(w)]
    w, beta = w / w.norm(dim=-1, keepdim=True), 2 * torch.sigmoid(3 * torch.randn(B, T, H))  # near 2: directions turn round
    mapped = [q, k, v, w, beta, F.logsigmoid(torch.randn(B, T, H))]
    assert_exact(path_attention, moved, mapped, 1e-5)
    for attention, given, whole_inputs, name in (
        (wall_attention, walled, (2,), "faded_k"), (path_attention, mapped, (2, 5), "moved_k"),
    ):  # fmt: skip
        whole, parts, keys = attention(*given)[0], [], None
        for begin, end in ((0, 70), (70, 71), (71, 150)):
            now = [x[:, :end] if i in whole_inputs else x[:, begin:end] for i, x in enumerate(given)]
            o, keys = attention(*now, **{name: keys})
            parts.append(o)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
        padded = attention(*given, seq_start=torch.tensor([0, 90]))[0]
        alone = attention(*(x[1:, 90:] for x in given))[0]
        torch.testing.assert_close(padded[1:, 90:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has a version of every layer")
def test_a_layer_without_a_cpu_version_says_which_and_where_to_add_it():
    install()
    from fla.layers.rodimus import RodimusAttention

    with pytest.raises(ValueError, match=r'add \("fla.layers.rodimus", "chunk_gla", recurrences.chunk_gla\) to _PLACES'):
        RodimusAttention(hidden_size=64)(torch.randn(1, 70, 64))


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
