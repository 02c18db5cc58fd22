"""SwiGLU: the formula, its gradient, and the kernels against plain PyTorch."""

import pytest
import torch
from torch import Tensor

from kernels.swiglu import swiglu


def test_it_is_the_formula() -> None:
    x = torch.randn(2, 5, 14, dtype=torch.float64)
    gate, up = x[..., :7], x[..., 7:]
    torch.testing.assert_close(swiglu(x), gate / (1 + torch.exp(-gate)) * up)


def test_bad_shapes_are_named() -> None:
    for shape in ((), (3, 5)):
        with pytest.raises(ValueError, match="its last dimension must be even"):
            swiglu(torch.zeros(shape))


def compare_with_kernels(device: str, dtype: torch.dtype, tolerance: float, size: float = 1.0) -> None:
    """Output and gradient of the Triton kernels against float64, relative to the norm of each: one token, lengths and widths
    that fill no program, inputs and gradients that are views."""
    from kernels.swiglu_triton import triton_swiglu

    generator = torch.Generator().manual_seed(0)
    for shape in ((1, 16), (3, 11, 600), (2, 9, 512)):
        whole = size * torch.randn(*shape[:-1], 2 * shape[-1], generator=generator)
        whole = whole.to(device, dtype)
        for x in (whole[..., : shape[-1]], whole[..., ::2]):
            x = x.detach().requires_grad_()
            exact = x.detach().double().requires_grad_()
            y, expected = triton_swiglu(x), swiglu(exact)
            dy = torch.randn(y.shape[::-1], generator=generator).to(device, dtype).permute(*range(y.dim())[::-1])
            (dx,), (truth,) = torch.autograd.grad(y, x, dy), torch.autograd.grad(expected, exact, dy.double())
            for a, b in ((y, expected), (dx, truth)):
                assert a.shape == b.shape
                assert a.dtype == dtype
                assert (a.double() - b).norm() <= tolerance * b.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_kernels_equal_plain_pytorch(dtype: torch.dtype, tolerance: float, size: float) -> None:
    compare_with_kernels("cuda", dtype, tolerance, size)


@pytest.mark.gpu
def test_kernels_equal_plain_pytorch_in_fp16() -> None:
    compare_with_kernels("cuda", torch.float16, 1e-3)  # at other sizes products leave its range


@pytest.mark.gpu
def test_compiled_it_is_the_same() -> None:
    x = torch.randn(4, 300, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)

    def loss(x: Tensor) -> Tensor:
        return (swiglu(x) @ weight.t()).float().square().mean()

    (plain,), (compiled,) = (torch.autograd.grad(f(x), x) for f in (loss, torch.compile(loss)))
    torch.testing.assert_close(compiled, plain)
