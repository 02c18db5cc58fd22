"""Attention whose keys fade or move, against its definition in float64, and itself in pieces."""

import torch
import torch.nn.functional as F

from kernels.fla_cpu.path_attention import path_attention
from kernels.fla_cpu.wall_attention import wall_attention
from tests.kernels.exact import assert_exact

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
