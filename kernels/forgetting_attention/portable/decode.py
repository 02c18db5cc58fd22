"""Decode kernel: one query per sequence, as in generation. Keys are read once, in one launch: each program takes a stretch of a
row's keys (split-K), and the row's last program to finish combines the results.

A program loops over its stretch from the last key to the first: the decay of a key is a running sum of the gates after it, so
no sum over the whole cache is needed, and the loop stops below the pruning threshold. Weights are relative to the running
maximum of their stretch, and stretches to the largest of these maxima: none exceeds 1.

Legend: N keys of a step, S stretches, D head dimension."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from ...attention_shared.launch import ceil_div, launch, power_of_two
from ..options import NAMESPACE
from ..validation import check_values
from ..visibility import CUT_LOG_GATE
from .prepare import LOG2E

BLOCK_N = 64
TARGET_PROGRAMS = 2048
MAX_ROWS = 65_535  # the limit of `check_tensors`
_LOG2E = tl.constexpr(LOG2E)
_CUT = tl.constexpr(CUT_LOG_GATE)


@triton.jit(do_not_specialize=["T", "H", "splits", "window"])
def _stretch_kernel(
    q_ptr, k_ptr, v_ptr, gate_ptr, threshold_ptr, seq_start_ptr, part_ptr, ended_ptr, o_ptr,
    q_stride_b, q_stride_h, k_stride_b, k_stride_t, k_stride_h, v_stride_b, v_stride_t, v_stride_h,
    gate_stride_b, gate_stride_t, gate_stride_h, scale2, T, H, splits, stretch, window,
    GROUP: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr, PRUNE: tl.constexpr,
):  # fmt: skip
    """Write weighted values, maximum, sum and total gate of one stretch, in base 2; a row's last program writes its output."""
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
    # Add the gate of the stretch's first key: every earlier key decays by the whole stretch's gates.
    own = tl.load(gate_ptr + tl.maximum(first, 0).to(tl.int64) * gate_stride_t, mask=first < last, other=0.0)
    decay += tl.where(own < _CUT, -float("inf"), own * _LOG2E)
    part_ptr += row * splits * (D + 4)
    tl.store(part_ptr + split * (D + 4) + d, acc_D)
    tl.store(part_ptr + split * (D + 4) + D, top)
    tl.store(part_ptr + split * (D + 4) + D + 1, total)
    tl.store(part_ptr + split * (D + 4) + D + 2, decay)
    tl.debug_barrier()  # all threads have stored this program's results before it counts as finished
    if tl.atomic_add(ended_ptr + row, 1, sem="acq_rel") == splits - 1:
        o_D = _join(part_ptr, splits, D)
        tl.store(o_ptr + row * D + d, o_D.to(o_ptr.dtype.element_ty))
        tl.store(ended_ptr + row, 0)  # for the next launch


@triton.jit
def _join(part_ptr, splits, D: tl.constexpr):
    """Combine the stretches from the last to the first, decayed by the gates of those after them, and normalise."""
    S: tl.constexpr = 32
    d = tl.arange(0, D)
    acc_D = tl.zeros((D,), tl.float32)
    total, top, after = 0.0, -float("inf"), 0.0
    for step in range(tl.cdiv(splits, S)):
        s = (tl.cdiv(splits, S) - 1 - step) * S + tl.arange(0, S)
        stat = part_ptr + s * (D + 4) + D
        decay_S = tl.load(stat + (D + 4) + 2, mask=s + 1 < splits, other=0.0, cache_modifier=".cg")  # of the next stretch
        top_S = tl.load(stat, mask=s < splits, other=-float("inf"), cache_modifier=".cg")
        top_S += after + tl.cumsum(decay_S, 0, reverse=True)
        total_S = tl.load(stat + 1, mask=s < splits, other=0.0, cache_modifier=".cg")
        acc_SD = tl.load(
            part_ptr + s[:, None] * (D + 4) + d[None, :], mask=(s < splits)[:, None], other=0.0, cache_modifier=".cg"
        )
        new_top = tl.maximum(top, tl.max(top_S, 0))
        finite = tl.where(new_top == -float("inf"), 0.0, new_top)
        weight_S, shrink = tl.exp2(top_S - finite), tl.exp2(top - finite)
        acc_D = acc_D * shrink + tl.sum(weight_S[:, None] * acc_SD, 0)
        total = total * shrink + tl.sum(weight_S * total_S, 0)
        top = new_top
        after += tl.sum(decay_S, 0)
    return acc_D / tl.where(total == 0.0, 1.0, total)


@functools.cache
def _kept(device: torch.device, stream: int, size: int) -> tuple[Tensor, Tensor]:
    """Return memory that all launches on a stream share: the stretches' results (uninitialised), and the number of finished
    programs of each row (zeros between two launches). A CUDA graph must own both, as it may be replayed on another stream."""
    return torch.empty(size, device=device, dtype=torch.float32), torch.zeros(MAX_ROWS, device=device, dtype=torch.int32)


def scratch(q: Tensor, size: int, rows: int, own_memory: bool) -> tuple[Tensor, Tensor]:
    """Return memory for a launch on q's device: `size` float32 numbers, and a counter per row, zero before and after it."""
    if own_memory or (q.is_cuda and torch.cuda.is_current_stream_capturing()):
        return torch.empty(size, device=q.device, dtype=torch.float32), torch.zeros(rows, device=q.device, dtype=torch.int32)
    stream = driver.active.get_current_stream(q.get_device()) if q.is_cuda else 0
    return _kept(q.device, stream, power_of_two(size))


def decode(
    q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, threshold: Tensor | None, seq_start: Tensor | None,
    window_size: int | None, scale: float, own_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Compute forgetting attention of the last position alone, q (B, 1, H, D); no gradient."""
    q_strides, k_strides, v_strides = q.stride(), k.stride(), v.stride()
    if not q_strides[3] == k_strides[3] == v_strides[3] == 1:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        q_strides, k_strides, v_strides = q.stride(), k.stride(), v.stride()
    B, _, H, D = q.shape
    T, key_heads = k.shape[1:3]
    steps = ceil_div(T, BLOCK_N)
    stretch = ceil_div(steps, min(steps, max(1, TARGET_PROGRAMS // (B * H)))) * BLOCK_N
    splits = ceil_div(T, stretch)
    part, ended = scratch(q, B * H * splits * (D + 4), B * H, own_memory)
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    launch(
        _stretch_kernel, (splits, B * H),
        (), (q, k, v, log_fgate, threshold, seq_start, part, ended, o),
        (
            q_strides[0], q_strides[2], *k_strides[:3], *v_strides[:3], *log_fgate.stride(),
            scale * LOG2E, T, H, splits, stretch, T if window_size is None else min(window_size, T),
        ),
        GROUP=H // key_heads, BLOCK_N=BLOCK_N, D=D, PAD=seq_start is not None, PRUNE=threshold is not None, num_warps=4,
    )  # fmt: skip
    return o


@torch.library.custom_op(f"{NAMESPACE}::decode", mutates_args=())
def triton_decode(
    q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, threshold: Tensor | None, seq_start: Tensor | None,
    window_size: int | None, scale: float,
) -> Tensor:  # fmt: skip
    """`decode` for torch.compile, which warms a CUDA graph up in the memory that the graph will own. Values are checked here,
    as there are none during tracing."""
    check_values(log_fgate, seq_start, None)
    return decode(q, k, v, log_fgate, threshold, seq_start, window_size, scale, own_memory=True)


triton_decode.register_fake(lambda q, *_: q.new_empty(q.shape))
