"""Triton kernel of `swiglu`: torch.compile would compute the two halves of the gradient separately, each from all inputs.

Legend: R rows, C columns of a program; F columns of either half."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.custom_op import differentiable

ROWS, COLUMNS = 8, 256


@triton.jit(do_not_specialize=["N"])
def _swiglu_kernel(
    x_ptr, y_ptr, dy_ptr, dx_ptr, N, F, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BACKWARD: tl.constexpr
):  # fmt: skip
    """Process a tile: forward writes y (N, F); backward writes dx (N, 2 F)."""
    r_R = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c_C = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside_RC = (r_R < N)[:, None] & (c_C < F)[None, :]
    wide_RC = r_R[:, None] * (2 * F) + c_C[None, :]
    narrow_RC = r_R[:, None] * F + c_C[None, :]
    gate_RC = tl.load(x_ptr + wide_RC, mask=inside_RC, other=0.0).to(tl.float32)
    up_RC = tl.load(x_ptr + F + wide_RC, mask=inside_RC, other=0.0).to(tl.float32)
    sigmoid_RC = tl.sigmoid(gate_RC)
    if BACKWARD:
        dy_RC = tl.load(dy_ptr + narrow_RC, mask=inside_RC, other=0.0).to(tl.float32)
        dgate_RC = dy_RC * up_RC * sigmoid_RC * (1.0 + gate_RC * (1.0 - sigmoid_RC))
        dup_RC = dy_RC * gate_RC * sigmoid_RC
        tl.store(dx_ptr + wide_RC, dgate_RC.to(dx_ptr.dtype.element_ty), mask=inside_RC)
        tl.store(dx_ptr + F + wide_RC, dup_RC.to(dx_ptr.dtype.element_ty), mask=inside_RC)
    else:
        tl.store(y_ptr + narrow_RC, (gate_RC * sigmoid_RC * up_RC).to(y_ptr.dtype.element_ty), mask=inside_RC)


def _swiglu(gate_up: Tensor) -> Tensor:
    """See `swiglu.swiglu`."""
    x = gate_up.contiguous()
    F = x.shape[-1] // 2
    y = x.new_empty(*x.shape[:-1], F)
    N = y.numel() // F
    _swiglu_kernel[(triton.cdiv(N, ROWS), triton.cdiv(F, COLUMNS))](x, y, y, y, N, F, ROWS, COLUMNS, BACKWARD=False)
    return y


def _swiglu_backward(dy: Tensor, gate_up: Tensor) -> list[Tensor]:
    x, dy = gate_up.contiguous(), dy.contiguous()
    dx = torch.empty_like(x)
    F = dy.shape[-1]
    N = dy.numel() // F
    _swiglu_kernel[(triton.cdiv(N, ROWS), triton.cdiv(F, COLUMNS))](x, dy, dy, dx, N, F, ROWS, COLUMNS, BACKWARD=True)
    return [dx]


triton_swiglu = differentiable("swiglu", _swiglu, _swiglu_backward, 1, lambda x: x.new_empty(*x.shape[:-1], x.shape[-1] // 2))
