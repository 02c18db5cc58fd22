"""The short convolution: its formula, states, and the kernels against float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.causal_conv import causal_conv_silu
from kernels.fla_cpu import modules


def plain(x_BTD: Tensor, weight_DW: Tensor, bias_D: Tensor | None) -> Tensor:
    """By PyTorch's own convolution."""
    D, W = weight_DW.shape
    z_BDT = F.conv1d(F.pad(x_BTD.mT, (W - 1, 0)), weight_DW[:, None], bias_D, groups=D)
    return F.silu(z_BDT).mT


@pytest.mark.parametrize("width", [3, 4])
def test_it_is_the_convolution(width: int) -> None:
    x, weight, bias = torch.randn(2, 9, 6), torch.randn(6, width), torch.randn(6)
    torch.testing.assert_close(causal_conv_silu(x, weight, bias)[0], plain(x, weight, bias))
    y, state = causal_conv_silu(x[:, :5], weight, bias, keep_state=True)
    rest, _ = causal_conv_silu(x[:, 5:], weight, bias, state)
    torch.testing.assert_close(torch.cat([y, rest], 1), plain(x, weight, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_keeps_its_convolution_to_the_last_bit(dtype: torch.dtype) -> None:
    """Committed results were made with it. x is a slice, as the mixers' is."""
    x, weight, bias = torch.randn(2, 9, 20).to(dtype)[..., 8:14], torch.randn(6, 4), torch.randn(6)
    expected, state = modules.causal_conv1d(x, weight, bias, output_final_state=True, activation="silu")
    y, kept = causal_conv_silu(x, weight, bias, keep_state=True)
    assert kept is not None and torch.equal(kept, state)
    assert torch.equal(y, expected)
    y, kept = causal_conv_silu(x, weight, bias)
    assert kept is None and torch.equal(y, expected) and y.dtype == dtype


@pytest.mark.parametrize("shapes", [((2, 9), (9, 4), (9,)), ((2, 3, 9), (8, 4), None), ((2, 3, 9), (9, 4), (8,))])
def test_bad_shapes_are_named(shapes) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"must be \(B, T, D\), \(D, W\) and \(D,\)"):
        causal_conv_silu(*(None if shape is None else torch.zeros(shape) for shape in shapes))


def compare_with_kernels(device: str, dtype: torch.dtype, tolerance: float, lengths: tuple[int, ...], D: int) -> None:
    """Output and gradients of the Triton kernels against float64, relative to the norm of each: sequences shorter than the
    taps, lengths and widths that fill no program, a batch, slices of a wider tensor, with and without bias."""
    from kernels.causal_conv_triton import triton_causal_conv_silu

    generator = torch.Generator().manual_seed(0)
    for T in lengths:
        wide = torch.randn(2, T, 2 * D, generator=generator).to(device, dtype)
        weight, bias = (torch.randn(shape, generator=generator).to(device) for shape in ((D, 4), (D,)))
        dy = torch.randn(2, D, T, generator=generator).to(device, dtype).mT
        for x, b in ((wide[..., D:], bias), (wide[..., ::2], None)):
            leaves = [None if t is None else t.detach().requires_grad_() for t in (x, weight, b)]
            exact = [None if t is None else t.detach().double().requires_grad_() for t in leaves]
            y, expected = triton_causal_conv_silu(*leaves), plain(*exact)
            found = torch.autograd.grad(y, [t for t in leaves if t is not None], dy)
            truth = torch.autograd.grad(expected, [t for t in exact if t is not None], dy.double())
            for name, one, other in zip(("y", "dx", "dweight", "dbias"), (y, *found), (expected, *truth), strict=False):
                assert one.shape == other.shape
                assert (one.double() - other).norm() <= tolerance * other.norm(), (T, name)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_kernels_equal_the_convolution(dtype: torch.dtype, tolerance: float) -> None:
    compare_with_kernels("cuda", dtype, tolerance, (1, 3, 64, 1000), 3328)


@pytest.mark.gpu
def test_compiled_it_is_the_same() -> None:
    x = torch.randn(2, 300, 1000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight, bias = (torch.randn(shape, device="cuda", requires_grad=True) for shape in ((600, 4), (600,)))

    def loss(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        _, inner = x.split([400, 600], -1)
        return causal_conv_silu(inner, weight, bias)[0].float().square().mean()

    plainly, compiled = (torch.autograd.grad(f(x, weight, bias), (x, weight, bias)) for f in (loss, torch.compile(loss)))
    torch.testing.assert_close(compiled, plainly)
