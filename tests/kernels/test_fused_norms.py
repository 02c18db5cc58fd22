"""Shift, norms and output gate against their formulas in float64, and identities of the shift."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import rms_norm

from kernels.fla_cpu import modules
from kernels.fused_norms import gated_output_norm, norm_of_gated, shift_and_norm
from tests.kernels.exact import assert_exact, in_nan


def shifted(x, alpha_logit, weight, before=None):
    if alpha_logit is not None:
        alpha = torch.sigmoid(alpha_logit)[..., None]
        before = torch.zeros_like(x[:, :1]) if before is None else before.detach()
        x = alpha * torch.cat([before, x[:, :-1]], 1) + (1 - alpha) * x
    return x if weight is None else rms_norm(x, x.shape[-1:], eps=1e-5) * weight.view(-1, x.shape[-1])


def gated(o, gate, weight, silu=False):
    y = rms_norm(o, o.shape[-1:], eps=1e-6) * weight.view(-1, o.shape[-1])
    return y if gate is None else y * (F.silu(gate) if silu else torch.sigmoid(gate))


def normed(y, z, weight):
    return rms_norm(y * F.silu(z), y.shape[-1:], eps=1e-5) * weight


def compare(device: str, dtype: torch.dtype, tolerance: float, size: float = 1.0, lengths=(2, 65, 130)) -> None:
    """Through the public functions: each form of the weight, with and without shift, norm and gate, numbers of any size."""
    for T, D, weight_shape in zip(lengths, (16, 32, 64), ((16,), (3, 32), (192,)), strict=False):
        generator = torch.Generator().manual_seed(T)
        shapes = ((2, T, 3, D), (2, T, 3), weight_shape, (2, T, 3, D), (2, 1, 3, D))
        x, alpha, weight, gate, before = (torch.randn(s, generator=generator).to(device, dtype) for s in shapes)
        x, alpha, gate, weight = size * x, max(size, 1.0) * alpha, max(size, 1.0) * gate, 1 + 0.1 * weight
        of = lambda x, a, w: shift_and_norm(x, a, w, before_B1HD=None if a is None else before.to(x))  # noqa: E731, B023
        exact = lambda x, a, w: shifted(x, a, w, None if a is None else before.to(x))  # noqa: E731, B023
        for a, w in ((alpha, weight), (alpha, None), (None, weight)):
            assert_exact(in_nan(of, slice(2)), exact, [x, a, w], tolerance)
            assert_exact(shift_and_norm, shifted, [x, a, w], tolerance)
        for g, silu in ((gate, False), (gate, True), (None, False)):
            run, formula = (lambda o, g, w, f=f, s=silu: f(o, g, w, silu=s) for f in (gated_output_norm, gated))
            assert_exact(run, formula, [x, g, weight], tolerance)
        flat = [x.flatten(2), gate.flatten(2), torch.randn(3 * D, generator=generator).to(device, dtype)]
        assert_exact(in_nan(norm_of_gated, slice(2)), normed, flat, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [
    (torch.float64, 1e-14), (torch.float32, 1e-5), (torch.bfloat16, 1e-2),
])  # fmt: skip
def test_they_are_their_formulas(dtype, tolerance) -> None:
    for size in (1e-3, 1.0, 1e4):
        compare("cpu", dtype, tolerance, size)


def test_bf16_is_rounded_once_at_the_end() -> None:
    o, gate, weight = torch.randn(2, 5, 3, 16).bfloat16(), torch.randn(2, 5, 3, 16).bfloat16(), torch.randn(48)
    assert torch.equal(gated_output_norm(o, gate, weight), gated(o.float(), gate.float(), weight).bfloat16())
    flat = o.flatten(2), gate.flatten(2), weight
    found = modules.rmsnorm_fn(flat[0], weight, None, flat[1], 1e-5, norm_before_gate=False)
    assert torch.equal(norm_of_gated(*flat), found), "what stands in for fla's is the same to the bit"


@pytest.mark.parametrize(("logit", "delay"), [(-1e4, 0), (1e4, 1)])
def test_alpha_zero_is_the_identity_and_one_a_delay(logit: float, delay: int) -> None:  # I11
    x = torch.randn(2, 6, 3, 16)
    expected = torch.cat([torch.zeros(2, delay, 3, 16), x[:, : 6 - delay]], 1)
    assert torch.equal(shift_and_norm(x, torch.full((2, 6, 3), logit), None), expected)


def test_token_by_token_equals_parallel() -> None:
    x, alpha, weight = torch.randn(2, 7, 3, 16), torch.randn(2, 7, 3), torch.randn(16)
    before: list[Tensor | None] = [None, *(x[:, t : t + 1] for t in range(6))]
    steps = [shift_and_norm(x[:, t : t + 1], alpha[:, t : t + 1], weight, before_B1HD=before[t]) for t in range(7)]
    torch.testing.assert_close(torch.cat(steps, 1), shift_and_norm(x, alpha, weight))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_kernels_are_their_formulas(dtype, tolerance, size) -> None:
    compare("cuda", dtype, tolerance, size)
