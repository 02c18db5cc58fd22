"""Tight pruning on a GPU: see `tight`. Three small kernels between those of `triton_prepare` and attention.

All in powers of two, as `local` and `base` are, sums over keys in float64: `c` grows beyond what float32 resolves.

Legend: M queries of a step, N keys.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.forgetting_attention.launch import ceil_div, launch, power_of_two
from kernels.forgetting_attention.tight import MARGIN
from kernels.forgetting_attention.triton_prepare import LOG2E, Prepared
from kernels.forgetting_attention.visibility import TILE

_TILE = tl.constexpr(TILE)
_HALF = tl.constexpr(TILE // 2)
MOST_TILES = 1024  # that a program takes at once
_STATS = tl.constexpr(4)  # per tile: what its rows need, their largest |q|^2, what gates leave of its keys, their largest |k|^2


@triton.jit
def _log2_sum(x, axis: tl.constexpr):
    """log2 of the sum of exp2(x), x float64, -inf of nothing."""
    top = tl.max(x, axis)
    finite = tl.where(top == -float("inf"), 0.0, top)
    below = tl.exp2((x - tl.expand_dims(finite, axis)).to(tl.float32))
    return finite + tl.log2(tl.sum(below, axis)).to(tl.float64)


@triton.jit
def _log2_add(a, b):
    top = tl.maximum(a, b)
    apart = tl.where(top == -float("inf"), 0.0, tl.minimum(a, b) - top).to(tl.float32)
    return top + tl.log2(1.0 + tl.exp2(apart)).to(tl.float64)


@triton.jit
def _largest(a, b):
    return tl.maximum(a, b)


@triton.jit
def _least(a, b):
    return tl.minimum(a, b)


@triton.jit
def _need_of_half(
    q_ptr, k_ptr, local_ptr, base_ptr, first_key_ptr, m, q_t, k_t, scale2, Q, T, D: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Of half a tile's rows: what the neediest has of its newest keys, and the largest |q|^2; +inf and 0 if none sees any."""
    d = tl.arange(0, D)[None, :]
    rows_M = m + tl.arange(0, _HALF)
    inside_M = rows_M < Q
    position_M = rows_M + (T - Q)
    key_N = m + (T - Q) - _HALF + tl.arange(0, _TILE)
    inside_N = (key_N >= 0) & (key_N < T)
    q_MD = tl.load(q_ptr + rows_M.to(tl.int64)[:, None] * q_t + d, mask=inside_M[:, None], other=0.0)
    k_ND = tl.load(k_ptr + key_N.to(tl.int64)[:, None] * k_t + d, mask=inside_N[:, None], other=0.0)
    s_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION) * scale2
    cum_M = tl.load(base_ptr + position_M // _TILE, mask=inside_M, other=0.0)
    cum_M += tl.load(local_ptr + position_M, mask=inside_M, other=0.0)
    cum_N = tl.load(base_ptr + key_N // _TILE, mask=inside_N, other=0.0)
    cum_N += tl.load(local_ptr + key_N, mask=inside_N, other=0.0)
    first_M = tl.load(first_key_ptr + rows_M, mask=inside_M, other=T)
    seen_MN = (key_N[None, :] <= position_M[:, None]) & (key_N[None, :] >= first_M[:, None]) & (key_N >= 0)[None, :]
    x_MN = tl.where(seen_MN, s_MN + (cum_M[:, None] - cum_N[None, :]).to(tl.float32), -float("inf"))
    top_M = tl.max(x_MN, 1)
    finite_M = tl.where(top_M == -float("inf"), 0.0, top_M)
    kept_M = finite_M + tl.log2(tl.sum(tl.exp2(x_MN - finite_M[:, None]), 1))
    some_M = (first_M <= position_M) & inside_M
    square_M = tl.sum(q_MD.to(tl.float32) * q_MD.to(tl.float32), 1)
    need = tl.min(tl.where(some_M, kept_M.to(tl.float64) - cum_M, float("inf")), 0)
    return need, tl.max(tl.where(some_M, square_M, 0.0), 0)


@triton.jit(do_not_specialize=["Q", "T", "H", "key_heads", "num_tiles"])
def _tile_kernel(
    q_ptr, k_ptr, local_ptr, base_ptr, first_key_ptr, stat_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, scale2, Q, T, H, key_heads, num_tiles,
    D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What a tile's queries need and what the gates leave of its keys, by themselves."""
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = row // H, row % H
    q_ptr += batch * q_b + head * q_h
    k_ptr += batch * k_b + head // (H // key_heads) * k_h
    local_ptr += row * num_tiles * _TILE
    base_ptr += row * (num_tiles + 1)
    stat_ptr += row * _STATS * num_tiles + tile
    key_N = tile * _TILE + tl.arange(0, _TILE)
    inside_N = key_N < T
    at_ND = key_N.to(tl.int64)[:, None] * k_t + tl.arange(0, D)[None, :]
    k_ND = tl.load(k_ptr + at_ND, mask=inside_N[:, None], other=0.0).to(tl.float32)
    cum_N = tl.load(base_ptr + tile) + tl.load(local_ptr + key_N)
    tl.store(stat_ptr + 2 * num_tiles, _log2_sum(tl.where(inside_N, -cum_N, -float("inf")), 0))
    tl.store(stat_ptr + 3 * num_tiles, tl.max(tl.sum(k_ND * k_ND, 1), 0).to(tl.float64))
    need, square = tl.full((), float("inf"), tl.float64), tl.zeros((), tl.float32)
    for m in range(tile * _TILE, tl.minimum(tile * _TILE + _TILE, Q), _HALF):
        half_need, half_square = _need_of_half(
            q_ptr, k_ptr, local_ptr, base_ptr, first_key_ptr + row * Q, m, q_t, k_t, scale2, Q, T, D, PRECISION
        )  # fmt: skip
        need, square = tl.minimum(need, half_need), tl.maximum(square, half_square)
    tl.store(stat_ptr, need)
    tl.store(stat_ptr + num_tiles, square.to(tl.float64))


@triton.jit(do_not_specialize=["num_tiles"])
def _prefix_kernel(stat_ptr, num_tiles, BLOCK: tl.constexpr):
    """Per head: of queries, this tile and all after it; of keys, this and all before it."""
    stat_ptr += tl.program_id(0).to(tl.int64) * _STATS * num_tiles
    left, square = tl.full((), -float("inf"), tl.float64), tl.zeros((), tl.float64)
    for first in range(0, num_tiles, BLOCK):
        n = first + tl.arange(0, BLOCK)
        at = stat_ptr + 2 * num_tiles + n
        left_N = tl.associative_scan(tl.load(at, mask=n < num_tiles, other=-float("inf")), 0, _log2_add)
        square_N = tl.associative_scan(tl.load(at + num_tiles, mask=n < num_tiles, other=0.0), 0, _largest)
        tl.store(at, _log2_add(left_N, tl.zeros_like(left_N) + left), mask=n < num_tiles)
        tl.store(at + num_tiles, tl.maximum(square_N, square), mask=n < num_tiles)
        left = _log2_add(left, tl.max(left_N, 0))  # sums rise: the last is the largest
        square = tl.maximum(square, tl.max(square_N, 0))
    need, square = tl.full((), float("inf"), tl.float64), tl.zeros((), tl.float64)
    for step in range(tl.cdiv(num_tiles, BLOCK)):
        m = (tl.cdiv(num_tiles, BLOCK) - 1 - step) * BLOCK + tl.arange(0, BLOCK)
        at = stat_ptr + m
        need_M = tl.load(at, mask=m < num_tiles, other=float("inf"))
        need_M = tl.minimum(tl.associative_scan(need_M, 0, _least, reverse=True), need)
        square_M = tl.load(at + num_tiles, mask=m < num_tiles, other=0.0)
        square_M = tl.maximum(tl.associative_scan(square_M, 0, _largest, reverse=True), square)
        tl.store(at, need_M, mask=m < num_tiles)
        tl.store(at + num_tiles, square_M, mask=m < num_tiles)
        need, square = tl.min(need_M, 0), tl.max(square_M, 0)


@triton.jit(do_not_specialize=["Q", "T", "num_tiles", "query_tiles"])
def _start_kernel(
    stat_ptr, start_ptr, scale2, tolerance2, Q, T, num_tiles, query_tiles, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Of query tiles, the first key tile; one that was later stays."""
    row = tl.program_id(1).to(tl.int64)
    stat_ptr += row * _STATS * num_tiles
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    need_M = tl.load(stat_ptr + m, mask=m < query_tiles, other=0.0) + tolerance2
    norm_M = tl.sqrt(tl.load(stat_ptr + num_tiles + m, mask=m < query_tiles, other=0.0).to(tl.float32)) * scale2
    own_M = (m * _TILE + (T - Q)) // _TILE
    count_M = tl.zeros((BLOCK_M,), tl.int32)
    for first in range(0, num_tiles, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        left_N = tl.load(stat_ptr + 2 * num_tiles + n, mask=n < num_tiles, other=0.0)
        norm_N = tl.sqrt(tl.load(stat_ptr + 3 * num_tiles + n, mask=n < num_tiles, other=0.0).to(tl.float32))
        lost_MN = left_N[None, :] + (norm_M[:, None] * norm_N[None, :]).to(tl.float64)
        dropped_MN = (lost_MN < need_M[:, None]) & (n[None, :] < own_M[:, None])
        count_M += tl.sum(dropped_MN.to(tl.int32), 1)
    start_ptr += row * query_tiles + m
    start_M = tl.load(start_ptr, mask=m < query_tiles, other=0)
    tl.store(start_ptr, tl.maximum(start_M, count_M), mask=m < query_tiles)


def tighten(q: Tensor, k: Tensor, prepared: Prepared, scale: float, log_tolerance: float) -> None:
    """Move the starts of query tiles, where `prepare` was given no threshold; q (B, Q, H, D), k (B, T, Hkv, D)."""
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    B, Q, H, D = q.shape
    T, key_heads = k.shape[1:3]
    N, M = prepared.base.shape[-1] - 1, prepared.start.shape[-1]
    stats = torch.empty(B, H, _STATS.value, N, device=q.device, dtype=torch.float64)
    launch(
        _tile_kernel, (N, B * H), (), (q, k, prepared.local, prepared.base, prepared.first_key, stats),
        (*q.stride()[:3], *k.stride()[:3], scale * LOG2E, Q, T, H, key_heads, N),
        D=D, PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=4,
    )  # fmt: skip
    launch(_prefix_kernel, (B * H,), (), (stats,), (N,), BLOCK=min(power_of_two(N), MOST_TILES), num_warps=4)
    launch(
        _start_kernel, (ceil_div(M, 32), B * H), (), (stats, prepared.start),
        (abs(scale) * LOG2E, (log_tolerance - MARGIN) * LOG2E, Q, T, N, M), BLOCK_M=32, BLOCK_N=64, num_warps=4,
    )  # fmt: skip
