"""SwiGLU against its formula in float64."""

import pytest
import torch
from torch import Tensor

from kernels.swiglu import swiglu
from tests.kernels.exact import assert_exact, in_nan


def formula(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up


def compare(run, device: str, dtype: torch.dtype, tolerance: float, size: float = 1.0) -> None:
    """One token, lengths and widths that fill no program."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((1, 16), (3, 11, 600), (2, 9, 512)):
        x = (size * torch.randn(shape, generator=generator)).to(device, dtype)
        assert_exact(in_nan(run), formula, [x], tolerance)


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_it_is_the_formula(size) -> None:
    compare(swiglu, "cpu", torch.float32, 1e-6, size)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [
    (torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 4e-3),
])  # fmt: skip
def test_kernels_equal_the_formula(dtype, tolerance, size) -> None:
    compare(swiglu, "cuda", dtype, tolerance, size)
