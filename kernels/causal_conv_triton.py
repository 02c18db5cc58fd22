"""Triton kernels of `causal_conv`: a program loops over a block of tokens of some channels, four tokens per step, and keeps the
previous three in registers, so that each input is loaded once.

The backward pass also needs the gradients of the next three tokens: a program loops four tokens past its own block.

Legend: C channels of a program; a, b, c, d the four tokens of a step, 1, 2, 3 the tokens before a, counted backwards."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.custom_op import differentiable

TOKENS, CHANNELS, WARPS = 64, 128, 1  # TOKENS must be a multiple of 4


@triton.jit
def _row(ptr, t, T, stride, c_C, inside_C):
    """Load token t in float32; zeros outside of the sequence."""
    return tl.load(ptr + t.to(tl.int64) * stride + c_C, mask=inside_C & (t >= 0) & (t < T), other=0.0).to(tl.float32)


@triton.jit
def _four_rows(ptr, t, T, stride, c_C, inside_C):
    return (
        _row(ptr, t, T, stride, c_C, inside_C),
        _row(ptr, t + 1, T, stride, c_C, inside_C),
        _row(ptr, t + 2, T, stride, c_C, inside_C),
        _row(ptr, t + 3, T, stride, c_C, inside_C),
    )


@triton.jit
def _store_row(ptr, t, start, stop, D, c_C, inside_C, row_C):
    """Store token t, if it lies in [start, stop)."""
    tl.store(ptr + t.to(tl.int64) * D + c_C, row_C.to(ptr.dtype.element_ty), mask=inside_C & (t >= start) & (t < stop))


@triton.jit
def _taps(weight_ptr, bias_ptr, c_C, inside_C, BIAS: tl.constexpr):
    """Load the four taps, that of the oldest token first, and the bias, in float32."""
    w3_C = tl.load(weight_ptr + c_C * 4, mask=inside_C, other=0.0).to(tl.float32)
    w2_C = tl.load(weight_ptr + c_C * 4 + 1, mask=inside_C, other=0.0).to(tl.float32)
    w1_C = tl.load(weight_ptr + c_C * 4 + 2, mask=inside_C, other=0.0).to(tl.float32)
    w0_C = tl.load(weight_ptr + c_C * 4 + 3, mask=inside_C, other=0.0).to(tl.float32)
    bias_C = tl.zeros_like(w0_C)
    if BIAS:
        bias_C = tl.load(bias_ptr + c_C, mask=inside_C, other=0.0).to(tl.float32)
    return w3_C, w2_C, w1_C, w0_C, bias_C


@triton.jit
def _silu(z_C):
    return z_C * tl.sigmoid(z_C)


@triton.jit
def _silu_slope(z_C):
    sigmoid_C = tl.sigmoid(z_C)
    return sigmoid_C * (1.0 + z_C * (1.0 - sigmoid_C))


@triton.jit(do_not_specialize=["T"])
def _conv_forward_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, stride_b, stride_t, T, D,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    c_C = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside_C = c_C < D
    x_ptr += batch * stride_b
    y_ptr += batch * T * D
    w3, w2, w1, w0, bias = _taps(weight_ptr, bias_ptr, c_C, inside_C, BIAS)
    first = tl.program_id(0) * TOKENS
    _, x3, x2, x1 = _four_rows(x_ptr, first - 4, T, stride_t, c_C, inside_C)
    for group in range(TOKENS // 4):
        t = first + 4 * group
        xa, xb, xc, xd = _four_rows(x_ptr, t, T, stride_t, c_C, inside_C)
        _store_row(y_ptr, t, 0, T, D, c_C, inside_C, _silu(bias + w3 * x3 + w2 * x2 + w1 * x1 + w0 * xa))
        _store_row(y_ptr, t + 1, 0, T, D, c_C, inside_C, _silu(bias + w3 * x2 + w2 * x1 + w1 * xa + w0 * xb))
        _store_row(y_ptr, t + 2, 0, T, D, c_C, inside_C, _silu(bias + w3 * x1 + w2 * xa + w1 * xb + w0 * xc))
        _store_row(y_ptr, t + 3, 0, T, D, c_C, inside_C, _silu(bias + w3 * xa + w2 * xb + w1 * xc + w0 * xd))
        x3, x2, x1 = xb, xc, xd


@triton.jit(do_not_specialize=["T"])
def _conv_backward_kernel(
    x_ptr, weight_ptr, bias_ptr, dy_ptr, dx_ptr, sums_ptr, stride_b, stride_t, T, D,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Write dx, and this program's partial sums (5, D) of the gradients of the four taps, oldest first, and of the bias. da to
    dd are the gradients of SiLU's inputs."""
    batch = tl.program_id(2).to(tl.int64)
    c_C = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside_C = c_C < D
    x_ptr += batch * stride_b
    dy_ptr += batch * T * D
    dx_ptr += batch * T * D
    w3, w2, w1, w0, bias = _taps(weight_ptr, bias_ptr, c_C, inside_C, BIAS)
    first = tl.program_id(0) * TOKENS
    stop = tl.minimum(first + TOKENS, T)
    _, x3, x2, x1 = _four_rows(x_ptr, first - 4, T, stride_t, c_C, inside_C)
    d3, d2, d1, dbias, dw3, dw2, dw1, dw0 = (tl.zeros_like(w0),) * 8
    for group in range(TOKENS // 4 + 1):
        t = first + 4 * group
        xa, xb, xc, xd = _four_rows(x_ptr, t, T, stride_t, c_C, inside_C)
        da, db, dc, dd = _four_rows(dy_ptr, t, T, D, c_C, inside_C)
        da *= _silu_slope(bias + w3 * x3 + w2 * x2 + w1 * x1 + w0 * xa)
        db *= _silu_slope(bias + w3 * x2 + w2 * x1 + w1 * xa + w0 * xb)
        dc *= _silu_slope(bias + w3 * x1 + w2 * xa + w1 * xb + w0 * xc)
        dd *= _silu_slope(bias + w3 * xa + w2 * xb + w1 * xc + w0 * xd)
        if group < TOKENS // 4:
            dw3 += da * x3 + db * x2 + dc * x1 + dd * xa
            dw2 += da * x2 + db * x1 + dc * xa + dd * xb
            dw1 += da * x1 + db * xa + dc * xb + dd * xc
            dw0 += da * xa + db * xb + dc * xc + dd * xd
            dbias += da + db + dc + dd
        _store_row(dx_ptr, t - 3, first, stop, D, c_C, inside_C, w0 * d3 + w1 * d2 + w2 * d1 + w3 * da)
        _store_row(dx_ptr, t - 2, first, stop, D, c_C, inside_C, w0 * d2 + w1 * d1 + w2 * da + w3 * db)
        _store_row(dx_ptr, t - 1, first, stop, D, c_C, inside_C, w0 * d1 + w1 * da + w2 * db + w3 * dc)
        _store_row(dx_ptr, t, first, stop, D, c_C, inside_C, w0 * da + w1 * db + w2 * dc + w3 * dd)
        x3, x2, x1 = xb, xc, xd
        d3, d2, d1 = db, dc, dd
    sums_ptr += (batch * tl.num_programs(0) + tl.program_id(0)) * 5 * D
    tl.store(sums_ptr + c_C, dw3, mask=inside_C)
    tl.store(sums_ptr + D + c_C, dw2, mask=inside_C)
    tl.store(sums_ptr + 2 * D + c_C, dw1, mask=inside_C)
    tl.store(sums_ptr + 3 * D + c_C, dw0, mask=inside_C)
    tl.store(sums_ptr + 4 * D + c_C, dbias, mask=inside_C)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `causal_conv.causal_conv_silu`; four taps."""
    x, weight = x if x.stride(-1) == 1 else x.contiguous(), weight.contiguous()
    B, T, D = x.shape
    y = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    _conv_forward_kernel[(triton.cdiv(T, TOKENS), triton.cdiv(D, CHANNELS), B)](
        x, weight, weight if bias is None else bias, y, *x.stride()[:2], T, D,
        TOKENS=TOKENS, CHANNELS=CHANNELS, BIAS=bias is not None, num_warps=WARPS,
    )  # fmt: skip
    return y


def _backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    x, weight = x if x.stride(-1) == 1 else x.contiguous(), weight.contiguous()
    B, T, D = x.shape
    dx = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    sums = torch.empty(B * triton.cdiv(T, TOKENS), 5, D, device=x.device, dtype=torch.float32)
    _conv_backward_kernel[(triton.cdiv(T, TOKENS), triton.cdiv(D, CHANNELS), B)](
        x, weight, weight if bias is None else bias, dy.contiguous(), dx, sums, *x.stride()[:2], T, D,
        TOKENS=TOKENS, CHANNELS=CHANNELS, BIAS=bias is not None, num_warps=WARPS,
    )  # fmt: skip
    total = sums.sum(0)
    dweight = total[:4].t().to(weight.dtype).contiguous()
    return [dx, dweight] if bias is None else [dx, dweight, total[4].to(bias.dtype)]


triton_causal_conv_silu = differentiable("causal_conv_silu", _forward, _backward, 3)
