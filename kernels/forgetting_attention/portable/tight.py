"""Tight pruning on a GPU: see `pruning.tight`. Three small kernels between those of `prepare` and attention.

All logs are in base 2, like `local` and `base`; sums over keys are float64, as `c` grows beyond float32's resolution.

Legend: M queries of a step, N keys."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention_shared.launch import ceil_div, launch, power_of_two
from ..pruning.tight import MARGIN
from ..visibility import TILE
from .prepare import LOG2E, Prepared, larger

_TILE = tl.constexpr(TILE)
_HALF = tl.constexpr(TILE // 2)
MOST_HALVES = 1024  # half tiles that a program handles at once
# Per half tile: the smallest kept weight of its rows, their largest |q|^2, the summed decay of its keys, their largest |k|^2.
_STATS = tl.constexpr(4)
_NEVER = tl.constexpr(2**31 - 1)


@triton.jit
def _log2_add(a, b):
    top = tl.maximum(a, b)
    apart = tl.where(top == -float("inf"), 0.0, tl.minimum(a, b) - top).to(tl.float32)
    return top + tl.log2(1.0 + tl.exp2(apart)).to(tl.float64)


@triton.jit
def _least(a, b):
    return tl.minimum(a, b)


@triton.jit
def _rows(x_ptr, row_M, stride, stop, D: tl.constexpr):
    """Load (M, D), zeros from `stop` on and before 0."""
    at = x_ptr + row_M.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :]
    return tl.load(at, mask=((row_M >= 0) & (row_M < stop))[:, None], other=0.0)


@triton.jit
def _largest_square(x_MD):
    x_MD = x_MD.to(tl.float32)
    return tl.max(tl.sum(x_MD * x_MD, 1), 0).to(tl.float64)


@triton.jit(do_not_specialize=["Q", "T", "num_tiles"])
def _halves_kernel(
    q_ptr, k_ptr, local_ptr, base_ptr, first_key_ptr, stat_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, scale2, Q, T, num_tiles,
    HEADS_PER_KEY: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the _STATS of one half tile of queries and of the half tile of keys with the same index."""
    half, head, batch = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    row = batch * tl.num_programs(1) + head
    q_ptr += batch * q_b + head * q_h
    k_ptr += batch * k_b + head // HEADS_PER_KEY * k_h
    local_ptr += row * num_tiles * _TILE
    base_ptr += row * (num_tiles + 1)
    stat_ptr += row * _STATS * (2 * num_tiles) + half

    # Queries, with the keys at the same positions and the half tile of keys before.
    each_M, each_N = tl.arange(0, _HALF), tl.arange(0, _TILE)
    rows_M = half * _HALF + each_M
    position = half * _HALF + (T - Q)
    key_N = position - _HALF + each_N
    q_MD, k_ND = _rows(q_ptr, rows_M, q_t, Q, D), _rows(k_ptr, key_N, k_t, T, D)
    first_M = tl.load(first_key_ptr + row * Q + rows_M, mask=rows_M < Q, other=_NEVER)
    inside_N = (key_N >= 0) & (key_N < T)
    cum_N = tl.load(base_ptr + key_N // _TILE, mask=inside_N, other=0.0)
    cum_N += tl.load(local_ptr + key_N, mask=inside_N, other=0.0)
    # Relative to the first query float32 suffices; its rounding error, where gates decay by thousands, is taken off the need.
    at = tl.minimum(position, T - 1)
    ref = tl.load(base_ptr + at // _TILE) + tl.load(local_ptr + at)
    away_N = tl.where(inside_N, (ref - cum_N).to(tl.float32), 0.0)
    s_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION) * scale2 + away_N[None, :]
    x_MN = tl.where(each_N[None, :] <= each_M[:, None] + _HALF, s_MN, -float("inf"))
    if tl.max(first_M, 0) > position - _HALF:  # some earlier keys are masked, or some rows are past Q
        x_MN = tl.where(key_N[None, :] >= first_M[:, None], x_MN, -float("inf"))
    top_M = tl.max(x_MN, 1)
    finite_M = tl.where(top_M == -float("inf"), 0.0, top_M)
    kept_M = finite_M + tl.log2(tl.sum(tl.exp2(x_MN - finite_M[:, None]), 1))
    rounded = tl.max(tl.abs(away_N), 0) * 2.0**-21
    need = tl.min(tl.where(first_M <= position + each_M, kept_M, float("inf")), 0) - rounded
    tl.store(stat_ptr, need.to(tl.float64) - ref)
    tl.store(stat_ptr + 2 * num_tiles, _largest_square(q_MD))

    # Keys. c never increases, so the last key has the largest term.
    key_M = half * _HALF + each_M
    last = tl.load(local_ptr + half * _HALF + (_HALF - 1))
    more = tl.log2(tl.sum(tl.exp2((last - tl.load(local_ptr + key_M)).to(tl.float32)), 0))
    tl.store(stat_ptr + 4 * num_tiles, more - (tl.load(base_ptr + half // 2) + last))
    tl.store(stat_ptr + 6 * num_tiles, _largest_square(_rows(k_ptr, key_M, k_t, T, D)))


@triton.jit(do_not_specialize=["halves"])
def _prefix_kernel(stat_ptr, halves, BLOCK: tl.constexpr):
    """Scan each head: queries' statistics over this half tile and all later ones, keys' over this and all earlier ones."""
    stat_ptr += tl.program_id(0).to(tl.int64) * _STATS * halves
    left, square = tl.full((), -float("inf"), tl.float64), tl.zeros((), tl.float64)
    for first in range(0, halves, BLOCK):
        n = first + tl.arange(0, BLOCK)
        at = stat_ptr + 2 * halves + n
        left_N = tl.associative_scan(tl.load(at, mask=n < halves, other=-float("inf")), 0, _log2_add)
        square_N = tl.associative_scan(tl.load(at + halves, mask=n < halves, other=0.0), 0, larger)
        tl.store(at, _log2_add(left_N, tl.zeros_like(left_N) + left), mask=n < halves)
        tl.store(at + halves, tl.maximum(square_N, square), mask=n < halves)
        left = _log2_add(left, tl.max(left_N, 0))  # the sums increase: the last is the largest
        square = tl.maximum(square, tl.max(square_N, 0))
    need, square = tl.full((), float("inf"), tl.float64), tl.zeros((), tl.float64)
    for step in range(tl.cdiv(halves, BLOCK)):
        m = (tl.cdiv(halves, BLOCK) - 1 - step) * BLOCK + tl.arange(0, BLOCK)
        at = stat_ptr + m
        need_M = tl.load(at, mask=m < halves, other=float("inf"))
        need_M = tl.minimum(tl.associative_scan(need_M, 0, _least, reverse=True), need)
        square_M = tl.load(at + halves, mask=m < halves, other=0.0)
        square_M = tl.maximum(tl.associative_scan(square_M, 0, larger, reverse=True), square)
        tl.store(at, need_M, mask=m < halves)
        tl.store(at + halves, square_M, mask=m < halves)
        need, square = tl.min(need_M, 0), tl.max(square_M, 0)


@triton.jit(do_not_specialize=["Q", "T", "num_tiles", "query_tiles"])
def _start_kernel(
    stat_ptr, start_ptr, scale2, tolerance2, Q, T, num_tiles, query_tiles, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Find the first key tile of each query tile; a start that is later already is kept."""
    row = tl.program_id(1).to(tl.int64)
    stat_ptr += row * _STATS * (2 * num_tiles)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    need_M = tl.load(stat_ptr + 2 * m, mask=m < query_tiles, other=0.0) + tolerance2
    square_M = tl.load(stat_ptr + 2 * num_tiles + 2 * m, mask=m < query_tiles, other=0.0)
    norm_M = tl.sqrt(square_M.to(tl.float32)) * scale2
    own_M = (m * _TILE + (T - Q)) // _TILE
    count_M = tl.zeros((BLOCK_M,), tl.int32)
    for first in range(0, num_tiles, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        left_N = tl.load(stat_ptr + 4 * num_tiles + 2 * n + 1, mask=n < num_tiles, other=0.0)
        norm_N = tl.sqrt(tl.load(stat_ptr + 6 * num_tiles + 2 * n + 1, mask=n < num_tiles, other=0.0).to(tl.float32))
        lost_MN = left_N[None, :] + (norm_M[:, None] * norm_N[None, :]).to(tl.float64)
        dropped_MN = (lost_MN < need_M[:, None]) & (n[None, :] < own_M[:, None])
        count_M += tl.sum(dropped_MN.to(tl.int32), 1)
    start_ptr += row * query_tiles + m
    start_M = tl.load(start_ptr, mask=m < query_tiles, other=0)
    tl.store(start_ptr, tl.maximum(start_M, count_M), mask=m < query_tiles)


def tighten(q: Tensor, k: Tensor, prepared: Prepared, scale: float, log_tolerance: float) -> None:
    """Raise the starts of query tiles in `prepared`, made without a threshold; q (B, Q, H, D), k (B, T, Hkv, D)."""
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    B, Q, H, D = q.shape
    T, key_heads = k.shape[1:3]
    N, M = prepared.base.shape[-1] - 1, prepared.start.shape[-1]
    stats = torch.empty(B, H, _STATS.value, 2 * N, device=q.device, dtype=torch.float64)
    launch(
        _halves_kernel, (2 * N, H, B), (), (q, k, prepared.local, prepared.base, prepared.first_key, stats),
        (*q.stride()[:3], *k.stride()[:3], scale * LOG2E, Q, T, N),
        HEADS_PER_KEY=H // key_heads, D=D, PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=4,
    )  # fmt: skip
    launch(_prefix_kernel, (B * H,), (), (stats,), (2 * N,), BLOCK=min(power_of_two(2 * N), MOST_HALVES), num_warps=4)
    launch(
        _start_kernel, (ceil_div(M, 32), B * H), (), (stats, prepared.start),
        (abs(scale) * LOG2E, (log_tolerance - MARGIN) * LOG2E, Q, T, N, M), BLOCK_M=32, BLOCK_N=64, num_warps=4,
    )  # fmt: skip
