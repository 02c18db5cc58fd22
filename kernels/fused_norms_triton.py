"""Triton kernels of `fused_norms`: a program takes BLOCK tokens of one head; backward recomputes the forward, and writes one
partial weight gradient per program. Inputs of up to 1e18 do not overflow float32: the largest values are sums of D squares.

Legend: R tokens of a program, D head dimension."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.custom_op import differentiable

BLOCK, WARPS = 16, 2
WIDE_FORWARD = 4, 8  # norms over all channels: tokens and warps of a program
WIDE_BACKWARD = 16, 256  # tokens of a program, channels of a warp: 16 warps are fastest with 3,072 channels, 4 with 1,024
# Grids are (heads, blocks of tokens, batch), so that programs that run concurrently read adjacent memory.


@triton.jit
def _mixed(
    x_ptr, alpha_ptr, before_ptr, t_R, inside_R, d, T, stride_t, alpha_stride_t, SHIFT: tl.constexpr, BEFORE: tl.constexpr
):  # fmt: skip
    """Return the shifted tokens, the tokens themselves, the previous tokens, and alpha, in float32."""
    x_RD = tl.load(x_ptr + t_R.to(tl.int64)[:, None] * stride_t + d[None, :], mask=inside_R[:, None], other=0.0)
    x_RD = x_RD.to(tl.float32)
    if not SHIFT:
        return x_RD, x_RD, x_RD, tl.zeros_like(t_R).to(tl.float32)
    has_previous = (inside_R & (t_R > 0))[:, None]
    previous_RD = tl.load(x_ptr + (t_R - 1).to(tl.int64)[:, None] * stride_t + d[None, :], mask=has_previous, other=0.0)
    previous_RD = previous_RD.to(tl.float32)
    if BEFORE:
        first_D = tl.load(before_ptr + d).to(tl.float32)
        previous_RD = tl.where((t_R == 0)[:, None], first_D[None, :], previous_RD)
    alpha_R = tl.load(alpha_ptr + t_R.to(tl.int64) * alpha_stride_t, mask=inside_R, other=0.0).to(tl.float32)
    alpha_R = tl.sigmoid(alpha_R)
    return alpha_R[:, None] * previous_RD + (1.0 - alpha_R)[:, None] * x_RD, x_RD, previous_RD, alpha_R


@triton.jit
def _norm_backward(dy_RD, m_RD, w_D, eps, D: tl.constexpr):
    """Compute the gradient of the norm's input, and that input scaled to unit root mean square."""
    scale_R = tl.rsqrt(tl.sum(m_RD * m_RD, 1) / D + eps)
    unit_RD = m_RD * scale_R[:, None]
    g_RD = dy_RD * w_D[None, :]
    return (g_RD - unit_RD * (tl.sum(g_RD * unit_RD, 1) / D)[:, None]) * scale_R[:, None], unit_RD


@triton.jit(do_not_specialize=["T", "H"])
def _shift_forward_kernel(
    x_ptr, alpha_ptr, w_ptr, before_ptr, y_ptr, stride_b, stride_t, stride_h, alpha_b, alpha_t, alpha_h, w_h, T, H, eps,
    BLOCK: tl.constexpr, D: tl.constexpr, SHIFT: tl.constexpr, NORM: tl.constexpr, BEFORE: tl.constexpr,
):  # fmt: skip
    head, batch = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    row = batch * H + head
    t_R = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    inside_R = t_R < T
    x_ptr += batch * stride_b + head * stride_h
    m_RD, _, _, _ = _mixed(
        x_ptr, alpha_ptr + batch * alpha_b + head * alpha_h, before_ptr + row * D, t_R, inside_R, d, T, stride_t, alpha_t,
        SHIFT, BEFORE,
    )  # fmt: skip
    if NORM:
        m_RD *= tl.rsqrt(tl.sum(m_RD * m_RD, 1) / D + eps)[:, None]
        m_RD *= tl.load(w_ptr + head * w_h + d).to(tl.float32)[None, :]
    out = ((batch * T + t_R) * H + head)[:, None] * D + d[None, :]
    tl.store(y_ptr + out, m_RD.to(y_ptr.dtype.element_ty), mask=inside_R[:, None])


@triton.jit(do_not_specialize=["T", "H"])
def _shift_backward_kernel(
    dy_ptr, x_ptr, alpha_ptr, w_ptr, before_ptr, dx_ptr, dalpha_ptr, dw_ptr,
    stride_b, stride_t, stride_h, alpha_b, alpha_t, alpha_h, w_h, T, H, eps,
    BLOCK: tl.constexpr, D: tl.constexpr, SHIFT: tl.constexpr, NORM: tl.constexpr, BEFORE: tl.constexpr,
):  # fmt: skip
    """Write all gradients. A token's comes from its own row and, through the shift, from the next, which is computed twice."""
    head, batch = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    row = batch * H + head
    t_R = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    x_ptr += batch * stride_b + head * stride_h
    alpha_ptr += batch * alpha_b + head * alpha_h
    before_ptr += row * D
    inside_R = t_R < T
    own = ((batch * T + t_R) * H + head)[:, None] * D + d[None, :]
    dm_RD = tl.load(dy_ptr + own, mask=inside_R[:, None], other=0.0).to(tl.float32)
    m_RD, x_RD, previous_RD, alpha_R = _mixed(
        x_ptr, alpha_ptr, before_ptr, t_R, inside_R, d, T, stride_t, alpha_t, SHIFT, BEFORE
    )
    w_D = tl.zeros((D,), tl.float32)
    if NORM:
        w_D = tl.load(w_ptr + head * w_h + d).to(tl.float32)
        dy_RD = dm_RD
        dm_RD, unit_RD = _norm_backward(dy_RD, m_RD, w_D, eps, D)
        tl.store(dw_ptr + (row * tl.num_programs(1) + tl.program_id(1)) * D + d, tl.sum(dy_RD * unit_RD, 0))
    dx_RD = dm_RD
    if SHIFT:
        dalpha_R = tl.sum(dm_RD * (previous_RD - x_RD), 1) * alpha_R * (1.0 - alpha_R)
        tl.store(dalpha_ptr + (batch * T + t_R) * H + head, dalpha_R, mask=inside_R)
        after_R = t_R + 1 < T
        dnext_RD = tl.load(dy_ptr + own + H * D, mask=after_R[:, None], other=0.0).to(tl.float32)
        m_RD, x_RD, previous_RD, next_alpha_R = _mixed(
            x_ptr, alpha_ptr, before_ptr, t_R + 1, after_R, d, T, stride_t, alpha_t, SHIFT, BEFORE
        )
        if NORM:
            dnext_RD, unit_RD = _norm_backward(dnext_RD, m_RD, w_D, eps, D)
        dx_RD = (1.0 - alpha_R)[:, None] * dm_RD + tl.where(after_R, next_alpha_R, 0.0)[:, None] * dnext_RD
    tl.store(dx_ptr + own, dx_RD.to(dx_ptr.dtype.element_ty), mask=inside_R[:, None])


@triton.jit(do_not_specialize=["T", "H"])
def _gated_norm_kernel(
    o_ptr, gate_ptr, w_ptr, y_ptr, dy_ptr, do_ptr, dgate_ptr, dw_ptr, w_h, T, H, eps,
    BLOCK: tl.constexpr, D: tl.constexpr, GATE: tl.constexpr, SILU: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Forward writes y; backward writes do, dgate and this program's part of dw. All tensors are contiguous."""
    head, batch = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    row = batch * H + head
    t_R = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    inside = (t_R < T)[:, None]
    at = ((batch * T + t_R) * H + head)[:, None] * D + d[None, :]
    o_RD = tl.load(o_ptr + at, mask=inside, other=0.0).to(tl.float32)
    w_D = tl.load(w_ptr + head * w_h + d).to(tl.float32)
    gate_RD = tl.full((BLOCK, D), 1.0, tl.float32)
    if GATE:
        z_RD = tl.load(gate_ptr + at, mask=inside, other=0.0).to(tl.float32)
        gate_RD = tl.sigmoid(z_RD)
        slope_RD = gate_RD * (1.0 - gate_RD)
        if SILU:
            slope_RD = gate_RD + z_RD * slope_RD
            gate_RD = z_RD * gate_RD
    if BACKWARD:
        dy_RD = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        do_RD, unit_RD = _norm_backward(dy_RD * gate_RD, o_RD, w_D, eps, D)
        tl.store(do_ptr + at, do_RD.to(do_ptr.dtype.element_ty), mask=inside)
        if GATE:
            dgate_RD = dy_RD * unit_RD * w_D[None, :] * slope_RD
            tl.store(dgate_ptr + at, dgate_RD.to(dgate_ptr.dtype.element_ty), mask=inside)
        dw_D = tl.sum(dy_RD * gate_RD * unit_RD, 0)
        tl.store(dw_ptr + (row * tl.num_programs(1) + tl.program_id(1)) * D + d, dw_D)
    else:
        scale_R = tl.rsqrt(tl.sum(o_RD * o_RD, 1) / D + eps)
        y_RD = o_RD * scale_R[:, None] * w_D[None, :] * gate_RD
        tl.store(y_ptr + at, y_RD.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["T", "N"])
def _norm_of_gated_kernel(y_ptr, z_ptr, w_ptr, out_ptr, z_b, z_t, T, N, d, eps, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Process ROWS tokens, one after another. All tensors but z are contiguous."""
    c = tl.arange(0, BLOCK_D)
    inside = c < d
    w = tl.load(w_ptr + c, mask=inside, other=0.0).to(tl.float32)
    for step in range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + step
        here = inside & (row < N)
        y = tl.load(y_ptr + row * d + c, mask=here, other=0.0).to(tl.float32)
        z = tl.load(z_ptr + row // T * z_b + row % T * z_t + c, mask=here, other=0.0).to(tl.float32)
        gated = y * z * tl.sigmoid(z)
        scale = tl.rsqrt(tl.sum(gated * gated, 0) / d + eps)
        tl.store(out_ptr + row * d + c, (gated * scale * w).to(out_ptr.dtype.element_ty), mask=here)


@triton.jit
def _gated_row(y_ptr, z_ptr, dout_ptr, row, z_b, z_t, T, d, c, mask):
    y = tl.load(y_ptr + row * d + c, mask=mask, other=0.0)
    z = tl.load(z_ptr + row // T * z_b + row % T * z_t + c, mask=mask, other=0.0)
    return y, z, tl.load(dout_ptr + row * d + c, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["T", "N"])
def _norm_of_gated_backward_kernel(
    y_ptr, z_ptr, w_ptr, dout_ptr, dy_ptr, dz_ptr, dw_ptr, z_b, z_t, T, N, d, eps, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Process ROWS tokens, loading the next while computing one, and write their part of dw. All but z are contiguous."""
    c = tl.arange(0, BLOCK_D)
    inside = c < d
    w = tl.load(w_ptr + c, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK_D,), tl.float32)
    row = tl.program_id(0).to(tl.int64) * ROWS
    end = tl.minimum(row + ROWS, N)
    next_y, next_z, next_dout = _gated_row(y_ptr, z_ptr, dout_ptr, row, z_b, z_t, T, d, c, inside & (row < end))
    for _ in range(ROWS):
        y, z, dout = next_y.to(tl.float32), next_z.to(tl.float32), next_dout.to(tl.float32)
        next_y, next_z, next_dout = _gated_row(y_ptr, z_ptr, dout_ptr, row + 1, z_b, z_t, T, d, c, inside & (row + 1 < end))
        sigmoid = tl.sigmoid(z)
        gated = y * z * sigmoid
        dunit = dout * w
        squares, products = tl.split(tl.sum(tl.join(gated * gated, dunit * gated), 0))  # one reduction across warps for both
        scale = tl.rsqrt(squares / d + eps)
        unit = gated * scale
        dw += dout * unit
        dgated = (dunit - unit * (products * scale / d)) * scale
        tl.store(dy_ptr + row * d + c, (dgated * z * sigmoid).to(dy_ptr.dtype.element_ty), mask=inside & (row < end))
        dz = dgated * y * sigmoid * (1.0 + z * (1.0 - sigmoid))
        tl.store(dz_ptr + row * d + c, dz.to(dz_ptr.dtype.element_ty), mask=inside & (row < end))
        row += 1
    tl.store(dw_ptr + tl.program_id(0) * d + c, dw, mask=inside)


def _weight_gradient(parts: Tensor, batch: int, weight: Tensor) -> Tensor:
    """Add up the programs' partial sums (B * H, programs, D) into the weight's shape, (D,) or (H * D,)."""
    per_head = parts.view(batch, -1, *parts.shape[1:]).sum((0, 2))
    total = per_head.sum(0) if weight.numel() == per_head.shape[1] else per_head.flatten()
    return total.to(weight.dtype)


def _head_step(weight: Tensor | None, head_dim: int) -> int:
    return 0 if weight is None or weight.numel() == head_dim else head_dim


def _shift_and_norm(x: Tensor, alpha_logit: Tensor | None, weight: Tensor | None, before: Tensor | None, eps: float) -> Tensor:
    """See `fused_norms.shift_and_norm`; weight is flat."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    before = None if before is None else before.contiguous()
    B, T, H, D = x.shape
    y = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    alpha_strides = (0, 0, 0) if alpha_logit is None else alpha_logit.stride()
    _shift_forward_kernel[(H, triton.cdiv(T, BLOCK), B)](
        x, x if alpha_logit is None else alpha_logit, x if weight is None else weight, x if before is None else before, y,
        *x.stride()[:3], *alpha_strides, _head_step(weight, D), T, H, eps,
        BLOCK=BLOCK, D=D, num_warps=WARPS, SHIFT=alpha_logit is not None, NORM=weight is not None, BEFORE=before is not None,
    )  # fmt: skip
    return y


def _shift_and_norm_backward(
    dy: Tensor, x: Tensor, alpha_logit: Tensor | None, weight: Tensor | None, before: Tensor | None, eps: float
) -> list[Tensor]:
    x = x if x.stride(-1) == 1 else x.contiguous()
    before = None if before is None else before.contiguous()
    B, T, H, D = x.shape
    dx = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    dalpha = torch.empty(B, T, H, device=x.device, dtype=torch.float32)
    parts = torch.empty(B * H, triton.cdiv(T, BLOCK), D, device=x.device, dtype=torch.float32)
    alpha_strides = (0, 0, 0) if alpha_logit is None else alpha_logit.stride()
    _shift_backward_kernel[(H, triton.cdiv(T, BLOCK), B)](
        dy.contiguous(), x, x if alpha_logit is None else alpha_logit, x if weight is None else weight,
        x if before is None else before, dx, dalpha, parts,
        *x.stride()[:3], *alpha_strides, _head_step(weight, D), T, H, eps,
        BLOCK=BLOCK, D=D, num_warps=WARPS, SHIFT=alpha_logit is not None, NORM=weight is not None, BEFORE=before is not None,
    )  # fmt: skip
    dalphas = [] if alpha_logit is None else [dalpha.to(alpha_logit.dtype)]
    return [dx, *dalphas, *([] if weight is None else [_weight_gradient(parts, B, weight)])]


def _gated_norm(o: Tensor, gate: Tensor | None, weight: Tensor, eps: float, silu: bool) -> Tensor:
    """See `fused_norms.gated_output_norm`; weight is flat."""
    B, T, H, D = o.shape
    o = o.contiguous()
    gate = o if gate is None else gate.contiguous()
    y = torch.empty_like(o)
    _gated_norm_kernel[(H, triton.cdiv(T, BLOCK), B)](
        o, gate, weight, y, y, y, y, y, _head_step(weight, D), T, H, eps,
        BLOCK=BLOCK, D=D, num_warps=WARPS, GATE=gate is not o, SILU=silu, BACKWARD=False,
    )  # fmt: skip
    return y


def _gated_norm_backward(dy: Tensor, o: Tensor, gate: Tensor | None, weight: Tensor, eps: float, silu: bool) -> list[Tensor]:
    B, T, H, D = o.shape
    o, has_gate = o.contiguous(), gate is not None
    gate = o if gate is None else gate.contiguous()
    do, dgate = torch.empty_like(o), torch.empty_like(gate)
    parts = torch.empty(B * H, triton.cdiv(T, BLOCK), D, device=o.device, dtype=torch.float32)
    _gated_norm_kernel[(H, triton.cdiv(T, BLOCK), B)](
        o, gate, weight, do, dy.contiguous(), do, dgate, parts, _head_step(weight, D), T, H, eps,
        BLOCK=BLOCK, D=D, num_warps=WARPS, GATE=has_gate, SILU=silu, BACKWARD=True,
    )  # fmt: skip
    return [do, *([dgate] if has_gate else []), _weight_gradient(parts, B, weight)]


def _norm_of_gated(y: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `fused_norms.norm_of_gated`."""
    y, z = y.contiguous(), z if z.stride(-1) == 1 else z.contiguous()
    B, T, d = y.shape
    rows, warps = WIDE_FORWARD
    out = torch.empty_like(y)
    _norm_of_gated_kernel[(triton.cdiv(B * T, rows),)](
        y, z, weight.contiguous(), out, *z.stride()[:2], T, B * T, d, eps,
        ROWS=rows, BLOCK_D=triton.next_power_of_2(d), num_warps=warps,
    )  # fmt: skip
    return out


def _norm_of_gated_backward(dout: Tensor, y: Tensor, z: Tensor, weight: Tensor, eps: float) -> list[Tensor]:
    y, z = y.contiguous(), z if z.stride(-1) == 1 else z.contiguous()
    B, T, d = y.shape
    rows, channels = WIDE_BACKWARD
    block = triton.next_power_of_2(d)
    dy, dz = torch.empty_like(y), torch.empty(z.shape, device=z.device, dtype=z.dtype)
    parts = torch.empty(triton.cdiv(B * T, rows), d, device=y.device, dtype=torch.float32)
    _norm_of_gated_backward_kernel[(len(parts),)](
        y, z, weight.contiguous(), dout.contiguous(), dy, dz, parts, *z.stride()[:2], T, B * T, d, eps,
        ROWS=rows, BLOCK_D=block, num_warps=min(max(block // channels, 1), 16),
    )  # fmt: skip
    return [dy, dz, parts.sum(0).to(weight.dtype)]


triton_shift_and_norm = differentiable("shift_and_norm", _shift_and_norm, _shift_and_norm_backward, 3)
triton_gated_norm = differentiable("gated_norm", _gated_norm, _gated_norm_backward, 3)
triton_norm_of_gated = differentiable("norm_of_gated", _norm_of_gated, _norm_of_gated_backward, 3)
