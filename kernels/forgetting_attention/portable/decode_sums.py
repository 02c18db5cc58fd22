"""Decode kernel for a cache that stores running sums of the log gates: each key is read once, by split-K programs of which a
row's last to finish combines the results.

A program takes one chunk of a head's keys. D of a key is a difference of two sums and falls with distance, so D of the chunk's
last key tells whether pruning keeps any of them: if not, the program reads no keys. Each position of a block has
its own running maximum, sum and output, combined after the last block: until then no thread waits for another.

Legend: N keys of a step, S chunks, D head dimension."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention_shared.launch import ceil_div, launch, power_of_two
from ..options import NAMESPACE
from ..visibility import CUT_LOG_GATE
from .decode import scratch
from .prepare import LOG2E

_LOG2E = tl.constexpr(LOG2E)
_CUT = tl.constexpr(CUT_LOG_GATE)
MANY_ROWS = 132
"""Number of rows (sequences times heads) that fill a GPU without split-K."""
LEAST_CHUNK, MOST_CHUNK, PROGRAMS = 256, 2048, 384


class Plan(NamedTuple):
    """Sizes of the programs."""

    block: int
    """Keys of a step."""
    chunk: int
    """Keys of a program."""
    warps: int
    stages: int


def plan(rows: int, num_keys: int, head_dim: int, itemsize: int, prune: bool = False) -> Plan:
    """Choose sizes for a number of rows (sequences times heads), as measured for bf16 with D = 64 on an H100. With pruning the
    time is that of the rows that keep most keys, so their chunks are shorter, and more programs share them."""
    many = rows >= MANY_ROWS
    chunk = 512
    if not many:
        chunk = power_of_two(ceil_div(rows * num_keys, 2 * PROGRAMS if prune else PROGRAMS))
        chunk = max(LEAST_CHUNK, min(MOST_CHUNK, chunk))
    wide = many or (prune and chunk > LEAST_CHUNK)
    block = max(16, min(128, (16_384 if wide else 8192) // (head_dim * itemsize)))
    return Plan(block, chunk, warps=4, stages=2 if wide else 3)


@triton.jit(do_not_specialize=["T", "H", "splits", "window"])
def _chunk_kernel(
    q_ptr, k_ptr, v_ptr, sum_ptr, threshold_ptr, seq_start_ptr, length_ptr, part_ptr, ended_ptr, o_ptr,
    q_stride_b, q_stride_h, k_stride_b, k_stride_t, k_stride_h, v_stride_b, v_stride_t, v_stride_h,
    sum_stride_b, sum_stride_t, sum_stride_h, scale2, T, H, splits, chunk, window,
    GROUP: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr, PRUNE: tl.constexpr, ROOM: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Write weighted values, maximum and sum of one chunk, in base 2; the row's last program writes its output."""
    row = tl.program_id(0).to(tl.int64)
    split = splits - 1 - tl.program_id(1)  # the newest keys first: they are read in any case
    batch, head = row // H, row % H
    if ROOM:  # only `length` of T entries hold a key; chunks after them are empty
        T = tl.minimum(tl.load(length_ptr), T)
    first = tl.maximum(split * chunk, T - window)
    if PAD:
        first = tl.maximum(first, tl.load(seq_start_ptr + batch).to(tl.int32))
    last = tl.minimum((split + 1) * chunk, T)
    sum_ptr += batch * sum_stride_b + head * sum_stride_h
    now = tl.load(sum_ptr + (T - 1).to(tl.int64) * sum_stride_t)
    limit = _CUT
    if PRUNE:
        limit = tl.maximum(tl.load(threshold_ptr + row), _CUT)
    nearest = (now - tl.load(sum_ptr + (last - 1).to(tl.int64) * sum_stride_t)).to(tl.float32)
    first = tl.where(nearest < limit, last, first)
    d = tl.arange(0, D)
    q_D = tl.load(q_ptr + batch * q_stride_b + head * q_stride_h + d).to(tl.float32) * scale2
    k_ptr += batch * k_stride_b + head // GROUP * k_stride_h
    v_ptr += batch * v_stride_b + head // GROUP * v_stride_h

    acc_ND = tl.zeros((BLOCK_N, D), tl.float32)
    total_N = tl.zeros((BLOCK_N,), tl.float32)
    top_N = tl.full((BLOCK_N,), -float("inf"), tl.float32)
    for start in tl.range(first, last, BLOCK_N, num_stages=STAGES):
        n = start + tl.arange(0, BLOCK_N)
        inside_N = n < last
        at = n.to(tl.int64)
        sum_N = tl.load(sum_ptr + at * sum_stride_t, mask=inside_N, other=0.0)
        k_ND = tl.load(k_ptr + at[:, None] * k_stride_t + d[None, :], mask=inside_N[:, None], other=0.0)
        v_ND = tl.load(v_ptr + at[:, None] * v_stride_t + d[None, :], mask=inside_N[:, None], other=0.0)
        decay_N = (now - sum_N).to(tl.float32)
        x_N = tl.sum(k_ND.to(tl.float32) * q_D[None, :], 1) + decay_N * _LOG2E
        x_N = tl.where(inside_N & (decay_N >= limit), x_N, -float("inf"))
        new_N = tl.maximum(top_N, x_N)
        finite_N = tl.where(new_N == -float("inf"), 0.0, new_N)
        p_N, shrink_N = tl.exp2(x_N - finite_N), tl.exp2(top_N - finite_N)
        acc_ND = acc_ND * shrink_N[:, None] + p_N[:, None] * v_ND.to(tl.float32)
        total_N = total_N * shrink_N + p_N
        top_N = new_N
    top = tl.max(top_N, 0)
    weight_N = tl.exp2(top_N - tl.where(top == -float("inf"), 0.0, top))
    acc_D, total = tl.sum(acc_ND * weight_N[:, None], 0), tl.sum(total_N * weight_N, 0)

    part_ptr += row * splits * (D + 4)
    tl.store(part_ptr + split * (D + 4) + d, acc_D)
    tl.store(part_ptr + split * (D + 4) + D, top)
    tl.store(part_ptr + split * (D + 4) + D + 1, total)
    tl.debug_barrier()  # all threads have stored this program's results before it counts as finished
    if tl.atomic_add(ended_ptr + row, 1, sem="acq_rel") == splits - 1:
        o_D = _join(part_ptr, splits, D)
        tl.store(o_ptr + row * D + d, o_D.to(o_ptr.dtype.element_ty))
        tl.store(ended_ptr + row, 0)  # for the next launch


@triton.jit
def _join(part_ptr, splits, D: tl.constexpr):
    """Combine the chunks by their maxima and normalise. The results of chunks that were skipped are not read."""
    S: tl.constexpr = 32
    d = tl.arange(0, D)
    acc_D = tl.zeros((D,), tl.float32)
    total, top = 0.0, -float("inf")
    for start in range(0, splits, S):
        s = start + tl.arange(0, S)
        stat = part_ptr + s * (D + 4) + D
        top_S = tl.load(stat, mask=s < splits, other=-float("inf"), cache_modifier=".cg")
        read_S = top_S != -float("inf")
        total_S = tl.load(stat + 1, mask=read_S, other=0.0, cache_modifier=".cg")
        acc_SD = tl.load(part_ptr + s[:, None] * (D + 4) + d[None, :], mask=read_S[:, None], other=0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, tl.max(top_S, 0))
        finite = tl.where(new_top == -float("inf"), 0.0, new_top)
        weight_S, shrink = tl.exp2(top_S - finite), tl.exp2(top - finite)
        acc_D = acc_D * shrink + tl.sum(weight_S[:, None] * acc_SD, 0)
        total = total * shrink + tl.sum(weight_S * total_S, 0)
        top = new_top
    return acc_D / tl.where(total == 0.0, 1.0, total)


def decode_sums(
    q: Tensor, k: Tensor, v: Tensor, gate_sum: Tensor, threshold: Tensor | None, seq_start: Tensor | None,
    length: Tensor | None, window_size: int | None, scale: float, own_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Compute forgetting attention of the last position alone, q (B, 1, H, D), with the running sums; no gradient. `length`
    (1,) int32: number of keys that are filled in."""
    if not q.stride(3) == k.stride(3) == v.stride(3) == 1:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    q_strides, k_strides, v_strides = q.stride(), k.stride(), v.stride()
    B, _, H, D = q.shape
    T, key_heads = k.shape[1:3]
    sizes = plan(B * H, T, D, k.element_size(), threshold is not None)
    splits = ceil_div(T, sizes.chunk)
    part, ended = scratch(q, B * H * splits * (D + 4), B * H, own_memory)
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    launch(
        _chunk_kernel, (B * H, splits),
        (), (q, k, v, gate_sum, threshold, seq_start, length, part, ended, o),
        (
            q_strides[0], q_strides[2], *k_strides[:3], *v_strides[:3], *gate_sum.stride(),
            scale * LOG2E, T, H, splits, sizes.chunk, T if window_size is None else min(window_size, T),
        ),
        GROUP=H // key_heads, BLOCK_N=sizes.block, D=D, PAD=seq_start is not None, PRUNE=threshold is not None,
        ROOM=length is not None, STAGES=sizes.stages, num_warps=sizes.warps,
    )  # fmt: skip
    return o


@torch.library.custom_op(f"{NAMESPACE}::decode_sums", mutates_args=())
def triton_decode_sums(
    q: Tensor, k: Tensor, v: Tensor, gate_sum: Tensor, threshold: Tensor | None, seq_start: Tensor | None,
    length: Tensor | None, window_size: int | None, scale: float,
) -> Tensor:  # fmt: skip
    """`decode_sums` for torch.compile, which warms a CUDA graph up in the memory that the graph will own."""
    return decode_sums(q, k, v, gate_sum, threshold, seq_start, length, window_size, scale, own_memory=True)


triton_decode_sums.register_fake(lambda q, *_: q.new_empty(q.shape))
