"""Shift, norms and output gate: what they compute, their gradients, and the kernels against plain PyTorch."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad, rms_norm, silu

from kernels.fla_cpu.modules import rmsnorm_fn
from kernels.fused_norms import gated_output_norm, norm_of_gated, shift_and_norm


def make(B: int, T: int, H: int, D: int, weight_shape: tuple[int, ...], device: str = "cpu") -> tuple[Tensor, ...]:
    """x, alpha logits, weight, gate."""
    generator = torch.Generator().manual_seed(T)
    shapes = ((B, T, H, D), (B, T, H), weight_shape, (B, T, H, D))
    x, alpha, weight, gate = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return tuple(t.to(device) for t in (x, alpha, 1.0 + 0.1 * weight, gate))


def test_shift_and_norm_is_the_formula() -> None:
    x, alpha_logit, weight, _ = make(2, 5, 3, 16, (3, 16))
    alpha = torch.sigmoid(alpha_logit)[..., None]
    previous = torch.zeros_like(x)
    previous[:, 1:] = x[:, :-1]
    mixed = alpha * previous + (1 - alpha) * x
    exactly = {"rtol": 0, "atol": 1e-13}
    torch.testing.assert_close(shift_and_norm(x, alpha_logit, None), mixed, **exactly)
    torch.testing.assert_close(shift_and_norm(x, alpha_logit, weight), rms_norm(mixed, (16,), eps=1e-5) * weight, **exactly)
    rounded = shift_and_norm(x.float(), alpha_logit.float(), weight.float())
    torch.testing.assert_close(rounded, shift_and_norm(x, alpha_logit, weight).float())


@pytest.mark.parametrize(("logit", "delay"), [(-1e4, 0), (1e4, 1)])
def test_alpha_zero_is_the_identity_and_one_a_delay(logit: float, delay: int) -> None:  # I11
    x = torch.randn(2, 6, 3, 16)
    shifted = shift_and_norm(x, torch.full((2, 6, 3), logit), None)
    expected = torch.cat([torch.zeros(2, delay, 3, 16), x[:, : 6 - delay]], 1)
    assert torch.equal(shifted, expected)


def test_token_by_token_equals_parallel() -> None:
    x, alpha, weight, _ = (t.float() for t in make(2, 7, 3, 16, (16,)))
    before = [None, *(x[:, t : t + 1] for t in range(6))]
    steps = [shift_and_norm(x[:, t : t + 1], alpha[:, t : t + 1], weight, before_B1HD=before[t]) for t in range(7)]
    torch.testing.assert_close(torch.cat(steps, 1), shift_and_norm(x, alpha, weight))


def test_gated_output_norm_is_the_formula() -> None:
    o, _, weight, gate = make(2, 5, 3, 16, (48,))
    exact = rms_norm(o, (16,), eps=1e-6) * weight.view(3, 16) * torch.sigmoid(gate)
    torch.testing.assert_close(gated_output_norm(o, gate, weight), exact, rtol=0, atol=1e-13)
    o, weight, gate = o.float(), weight.float(), gate.float()
    expected = rms_norm(o, (16,), eps=1e-6) * weight.view(3, 16) * torch.sigmoid(gate)
    torch.testing.assert_close(gated_output_norm(o, gate, weight), expected)
    low, coarse = o.bfloat16(), gate.bfloat16()
    exact = rms_norm(low.float(), (16,), eps=1e-6) * weight.view(3, 16) * torch.sigmoid(coarse.float())
    assert torch.equal(gated_output_norm(low, coarse, weight), exact.bfloat16()), "rounded once, at the end"
    found = gated_output_norm(low, coarse, weight, silu=True)
    assert torch.equal(found, (exact * coarse.float()).bfloat16())


def test_norm_of_gated_is_what_stands_in_for_fla_s() -> None:
    y, z, weight = torch.randn(2, 5, 48), torch.randn(2, 5, 48), torch.randn(48)
    for dtype in (torch.float32, torch.bfloat16):
        found = norm_of_gated(y.to(dtype), z.to(dtype), weight)
        assert torch.equal(found, rmsnorm_fn(y.to(dtype), weight, None, z.to(dtype), 1e-5, norm_before_gate=False))
    y, z, weight = y.double(), z.double(), weight.double()
    exact = rms_norm(y * silu(z), (48,), eps=1e-5) * weight
    torch.testing.assert_close(norm_of_gated(y, z, weight), exact, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("weight has shape", lambda x: shift_and_norm(x, None, torch.ones(5))),
        ("alpha_logit_BTH has shape", lambda x: shift_and_norm(x, torch.ones(2, 3), None)),
        ("nothing to do", lambda x: shift_and_norm(x, None, None)),
        ("gate_BTHD has shape", lambda x: gated_output_norm(x, torch.ones(3), torch.ones(16))),
        ("they must be", lambda x: norm_of_gated(x[0], x[0], torch.ones(3))),
        ("o_BTHD has shape", lambda x: gated_output_norm(x[0], None, torch.ones(16))),
    ],
)
def test_bad_input_is_named(message: str, call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(2, 4, 3, 16))


def compare_with_kernels(
    device: str, dtype: torch.dtype, tolerance: float, size: float = 1.0, lengths: tuple[int, ...] = (2, 65, 130)
) -> None:
    """Outputs and gradients of the Triton kernels against plain PyTorch on the CPU, relative to the norm of each."""
    from kernels.fused_norms_triton import triton_gated_norm, triton_norm_of_gated, triton_shift_and_norm

    def check(fused, plain, inputs: list[Tensor | None]) -> None:  # type: ignore[no-untyped-def]
        leaves = [None if t is None else t.to(device, dtype).requires_grad_() for t in inputs]
        exact = [None if t is None else t.detach().cpu().float().requires_grad_() for t in leaves]
        y, expected = fused(*leaves), plain(*exact)
        dy = torch.randn(expected.shape[::-1], generator=torch.Generator().manual_seed(1)).to(dtype)
        dy = dy.permute(*range(dy.dim())[::-1])  # its numbers do not lie in their order
        found = torch.autograd.grad(y, [t for t in leaves if t is not None], dy.to(device))
        truth = torch.autograd.grad(expected, [t for t in exact if t is not None], dy.float())
        for a, b in zip((y, *found), (expected, *truth), strict=True):
            assert (a.cpu().float() - b).norm() <= tolerance * b.norm()

    for T, D, weight_shape in zip(lengths, (16, 32, 64), ((16,), (3, 32), (192,)), strict=False):
        x, alpha, weight, gate = make(2, T, 3, D, weight_shape)
        x, alpha, gate = size * x, max(size, 1.0) * alpha, max(size, 1.0) * gate
        for a, w in ((alpha, weight), (alpha, None), (None, weight)):
            check(
                lambda x, a, w: triton_shift_and_norm(x, a, None if w is None else w.reshape(-1), None, 1e-5),
                lambda x, a, w: shift_and_norm(x, a, w),
                [x, a, w],
            )
        # alpha as a slice of a wider product, and a token before the first as the last of those before it
        check(
            lambda x, a, w: triton_shift_and_norm(x[:, 1:], a[:, 1:, 3:], w.reshape(-1), x[:, :1].detach(), 1e-5),
            lambda x, a, w: shift_and_norm(x[:, 1:], a[:, 1:, 3:], w, before_B1HD=x[:, :1]),
            [x, torch.cat([torch.ones_like(alpha), alpha], -1), weight],
        )
        y, z = x.flatten(-2), pad(torch.cat([gate, x], 2).flatten(-2), (0, 0, 0, 1))
        check(
            lambda y, z, w: triton_norm_of_gated(y, z[:, :-1, : y.shape[-1]], w, 1e-5),
            lambda y, z, w: norm_of_gated(y, z[:, :-1, : y.shape[-1]], w),
            [y, z, torch.randn(3 * D, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(device)],
        )
        for g, swish in ((gate, False), (gate, True), (None, False)):
            check(
                lambda o, g, w, swish=swish: triton_gated_norm(o, g, w.reshape(-1), 1e-6, swish),
                lambda o, g, w, swish=swish: gated_output_norm(o, g, w, silu=swish),
                [x, g, weight],
            )


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_kernels_equal_plain_pytorch(dtype: torch.dtype, tolerance: float, size: float) -> None:
    compare_with_kernels("cuda", dtype, tolerance, size)
