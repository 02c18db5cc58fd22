"""The short convolution against PyTorch's own in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.causal_conv import causal_conv_silu
from kernels.fla_cpu import modules
from tests.kernels.exact import assert_exact, in_nan


def plain(x_BTD: Tensor, weight_DW: Tensor, bias_D: Tensor | None) -> Tensor:
    D, W = weight_DW.shape
    z_BDT = F.conv1d(F.pad(x_BTD.mT, (W - 1, 0)), weight_DW[:, None], bias_D, groups=D)
    return F.silu(z_BDT).mT


def compare(run, device, dtype, tolerance, lengths, D, width=4) -> None:
    """Sequences shorter than the taps, lengths and widths that fill no program, a batch, with and without bias."""
    generator = torch.Generator().manual_seed(0)
    for T in lengths:
        x = torch.randn(2, T, D, generator=generator).to(device, dtype)
        weight, bias = (torch.randn(shape, generator=generator).to(device) for shape in ((D, width), (D,)))
        for b in (bias, None):
            assert_exact(in_nan(run, slice(1)), plain, [x, weight, b], tolerance)


@pytest.mark.parametrize("width", [3, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_it_is_the_convolution(width, dtype, tolerance) -> None:
    compare(lambda *given: causal_conv_silu(*given)[0], "cpu", dtype, tolerance, (1, 3, 21), 21, width)


def test_a_sequence_continues_from_its_state() -> None:
    x, weight, bias = torch.randn(2, 12, 6), torch.randn(6, 4), torch.randn(6)
    y, state = causal_conv_silu(x[:, :5], weight, bias, keep_state=True)
    rest, end = causal_conv_silu(x[:, 5:], weight, bias, state, keep_state=True)
    torch.testing.assert_close(torch.cat([y, rest], 1), plain(x, weight, bias))
    assert torch.equal(end, x[:, -4:].mT)
    last, same = modules.causal_conv1d_update(x[:, 5:6], state, weight=weight, bias=bias, activation="silu")
    torch.testing.assert_close(last, rest[:, :1])
    assert same is state and torch.equal(state, x[:, 2:6].mT)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_kernels_equal_the_convolution(dtype, tolerance) -> None:
    compare(lambda *given: causal_conv_silu(*given)[0], "cuda", dtype, tolerance, (1, 3, 64, 1000), 3328)
