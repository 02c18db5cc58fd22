"""One query per sequence, as in generation: the keys are read once, split among programs that a second kernel joins.

Each program walks its stretch of keys from the last to the first, so the decay of a key is a running sum of the gates after it,
and it stops once that sum is below the pruning threshold. No cumulative gate over the whole cache is needed. Weights are
relative to the running maximum of the stretch, and stretches to the largest of theirs: none passes 1, in every regime.

Legend: N keys of a step, S stretches, D head dimension.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.forgetting_attention.triton_prepare import LOG2E
from kernels.forgetting_attention.visibility import CUT_LOG_GATE

BLOCK_N = 64
TARGET_PROGRAMS = 2048
_LOG2E = tl.constexpr(LOG2E)
_CUT = tl.constexpr(CUT_LOG_GATE)


@triton.jit(do_not_specialize=["T", "H", "splits", "window"])
def _stretch_kernel(
    q_ptr, k_ptr, v_ptr, gate_ptr, threshold_ptr, seq_start_ptr, acc_ptr, stat_ptr,
    q_stride_b, q_stride_h, k_stride_b, k_stride_t, k_stride_h, v_stride_b, v_stride_t, v_stride_h,
    gate_stride_b, gate_stride_t, gate_stride_h, scale2, T, H, splits, stretch, window,
    GROUP: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr, PRUNE: tl.constexpr,
):  # fmt: skip
    """Maximum, sum, weighted values and total gate of one stretch, in base 2."""
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = row // H, row % H
    first = tl.maximum(split * stretch, T - window)
    if PAD:
        first = tl.maximum(first, tl.load(seq_start_ptr + batch).to(tl.int32))
    last = tl.minimum((split + 1) * stretch, T)
    limit = -float("inf")
    if PRUNE:
        limit = tl.load(threshold_ptr + row) * _LOG2E
    d = tl.arange(0, D)
    q_D = tl.load(q_ptr + batch * q_stride_b + head * q_stride_h + d).to(tl.float32)
    k_ptr += batch * k_stride_b + head // GROUP * k_stride_h
    v_ptr += batch * v_stride_b + head // GROUP * v_stride_h
    gate_ptr += batch * gate_stride_b + head * gate_stride_h

    acc_D = tl.zeros((D,), tl.float32)
    total, top, decay = 0.0, -float("inf"), 0.0
    stop = last
    while (stop > first) & (decay > limit):
        n = stop - BLOCK_N + tl.arange(0, BLOCK_N)
        inside_N = n >= first
        after_N = n + 1 < last  # the gate that follows the stretch belongs to the next one
        gate_N = tl.load(gate_ptr + (n + 1).to(tl.int64) * gate_stride_t, mask=inside_N & after_N, other=0.0)
        gate_N = tl.where(gate_N < _CUT, -float("inf"), gate_N * _LOG2E)
        decay_N = decay + tl.cumsum(gate_N, 0, reverse=True)
        at = n.to(tl.int64)[:, None]
        k_ND = tl.load(k_ptr + at * k_stride_t + d[None, :], mask=inside_N[:, None], other=0.0).to(tl.float32)
        v_ND = tl.load(v_ptr + at * v_stride_t + d[None, :], mask=inside_N[:, None], other=0.0).to(tl.float32)
        x_N = tl.where(inside_N, tl.sum(k_ND * q_D[None, :], 1) * scale2 + decay_N, -float("inf"))
        new_top = tl.maximum(top, tl.max(x_N, 0))
        finite = tl.where(new_top == -float("inf"), 0.0, new_top)
        p_N = tl.exp2(x_N - finite)
        shrink = tl.exp2(top - finite)
        acc_D = acc_D * shrink + tl.sum(p_N[:, None] * v_ND, 0)
        total = total * shrink + tl.sum(p_N, 0)
        top = new_top
        decay += tl.sum(gate_N, 0)
        stop -= BLOCK_N
    # The whole stretch's gates, its first key's included: what every earlier key decays by.
    own = tl.load(gate_ptr + tl.maximum(first, 0).to(tl.int64) * gate_stride_t, mask=first < last, other=0.0)
    decay += tl.where(own < _CUT, -float("inf"), own * _LOG2E)
    out = row * splits + split
    tl.store(acc_ptr + out * D + d, acc_D)
    tl.store(stat_ptr + out * 3, top)
    tl.store(stat_ptr + out * 3 + 1, total)
    tl.store(stat_ptr + out * 3 + 2, decay)


@triton.jit(do_not_specialize=["splits"])
def _join_kernel(acc_ptr, stat_ptr, o_ptr, splits, SPLITS: tl.constexpr, D: tl.constexpr):
    """Weigh the stretches by what follows them and divide."""
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, SPLITS)
    d = tl.arange(0, D)
    stat_ptr += row * splits * 3
    top_S = tl.load(stat_ptr + s * 3, mask=s < splits, other=-float("inf"))
    total_S = tl.load(stat_ptr + s * 3 + 1, mask=s < splits, other=0.0)
    after_S = tl.load(stat_ptr + (s + 1) * 3 + 2, mask=s + 1 < splits, other=0.0)
    top_S += tl.cumsum(after_S, 0, reverse=True)
    top = tl.max(top_S, 0)
    weight_S = tl.exp2(top_S - tl.where(top == -float("inf"), 0.0, top))
    acc_SD = tl.load(acc_ptr + (row * splits + s)[:, None] * D + d[None, :], mask=(s < splits)[:, None], other=0.0)
    total = tl.sum(weight_S * total_S, 0)
    o_D = tl.sum(weight_S[:, None] * acc_SD, 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(o_ptr + row * D + d, o_D.to(o_ptr.dtype.element_ty))


@torch.library.custom_op("forgetting_attention::triton_decode", mutates_args=())
def triton_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_fgate: Tensor,
    threshold: Tensor | None,
    seq_start: Tensor | None,
    window_size: int | None,
    scale: float,
) -> Tensor:
    """Forgetting attention of the last position alone, q (B, 1, H, D); no gradient."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    B, _, H, D = q.shape
    T, key_heads = k.shape[1:3]
    steps = triton.cdiv(T, BLOCK_N)
    stretch = triton.cdiv(steps, min(steps, max(1, TARGET_PROGRAMS // (B * H)))) * BLOCK_N
    splits = triton.cdiv(T, stretch)
    acc = torch.empty(B * H, splits, D, device=q.device, dtype=torch.float32)
    stat = torch.empty(B * H, splits, 3, device=q.device, dtype=torch.float32)
    o = torch.empty(B, 1, H, D, device=q.device, dtype=q.dtype)
    _stretch_kernel[(splits, B * H)](
        q, k, v, log_fgate, threshold, seq_start, acc, stat, q.stride(0), q.stride(2), *k.stride()[:3], *v.stride()[:3],
        *log_fgate.stride(), scale * LOG2E, T, H, splits, stretch, T if window_size is None else min(window_size, T),
        GROUP=H // key_heads, BLOCK_N=BLOCK_N, D=D, PAD=seq_start is not None, PRUNE=threshold is not None, num_warps=4,
    )  # fmt: skip
    _join_kernel[(B * H,)](acc, stat, o, splits, SPLITS=triton.next_power_of_2(splits), D=D, num_warps=4)
    return o


@triton_decode.register_fake
def _(q, k, v, log_fgate, threshold, seq_start, window_size, scale):  # type: ignore[no-untyped-def]
    return q.new_empty(q.shape)
