"""Preparation for the attention kernels: cumulative gates with a base per tile, and the keys that each query tile may skip.

`c` in base-2 units is stored as a float64 base per tile of 128 keys (`base`) plus a float32 offset inside the tile (`local`),
so that no precision is lost over long sequences and the attention kernels add one float32 per key. Masked prefixes (left
padding, documents, window, gates of zero) become `first_key` per query; `start` per query tile also includes pruning.

Legend: B batch, T keys, Q queries, H heads, N = ceil(T / TILE) key tiles, M = ceil(Q / TILE) query tiles."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention_shared.launch import ceil_div, launch, power_of_two
from ..visibility import CUT_LOG_GATE, TILE

LOG2E = 1.4426950408889634
WHOLE_TILES = 32  # key tiles that one program handles at once: for short inputs three launches would dominate
_LOG2E = tl.constexpr(LOG2E)
_CUT = tl.constexpr(CUT_LOG_GATE)
_TILE = tl.constexpr(TILE)


class Prepared(NamedTuple):
    """Inputs of the attention kernels besides q, k, v."""

    local: Tensor
    """(B, H, N * TILE) float32, float64 if exact: c_t minus the base of t's tile, times log2(e)."""
    base: Tensor
    """(B, H, N + 1) float64: c before each tile, times log2(e)."""
    first_key: Tensor
    """(B, H, Q) int32: first visible key of each query."""
    start: Tensor
    """(B, H, M) int32: key tile at which each query tile starts."""
    taken: Tensor | None = None
    """(1,) int32: counter of query tiles taken by programs of the Hopper kernel; 0 before and after it."""


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["T", "H", "num_tiles"])
def _tile_sums_kernel(
    gate_ptr, local_ptr, sum_ptr, cut_ptr, tile_cut_ptr, stride_b, stride_t, stride_h, T, H, num_tiles, HEADS: tl.constexpr
):
    """Compute per tile the running sums of the gates from its start, their total, and the last cut at or before each token."""
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    t = tile * _TILE + tl.arange(0, _TILE)
    h = tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    inside = (t < T)[:, None] & (h < H)[None, :]
    offset = batch * stride_b + t[:, None].to(tl.int64) * stride_t + h[None, :] * stride_h
    gate = tl.load(gate_ptr + offset, mask=inside, other=0.0)
    is_cut = gate < _CUT
    gate = tl.where(is_cut, 0.0, gate).to(tl.float64) * _LOG2E
    row = (batch * H + h)[None, :] * (num_tiles * _TILE) + t[:, None]
    tl.store(local_ptr + row, tl.cumsum(gate, 0).to(local_ptr.dtype.element_ty), mask=(h < H)[None, :])
    tl.store(sum_ptr + (batch * H + h) * num_tiles + tile, tl.sum(gate, 0), mask=h < H)
    cut = tl.where(is_cut, t[:, None], -1).to(tl.int32)
    tl.store(cut_ptr + row, tl.associative_scan(cut, 0, larger), mask=(h < H)[None, :])
    tl.store(tile_cut_ptr + (batch * H + h) * num_tiles + tile, tl.max(cut, 0), mask=h < H)


@triton.jit(do_not_specialize=["num_tiles"])
def _tile_bases_kernel(sum_ptr, tile_cut_ptr, base_ptr, cut_before_ptr, taken_ptr, num_tiles, BLOCK: tl.constexpr):
    """Compute per head the sum before each tile and the last cut before it."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(taken_ptr, 0, mask=row == 0)
    carry, cut_carry = tl.zeros((), tl.float64), tl.full((), 0, tl.int32)
    tl.store(base_ptr + row * (num_tiles + 1), carry)
    for first in range(0, num_tiles, BLOCK):
        n = first + tl.arange(0, BLOCK)
        total = tl.load(sum_ptr + row * num_tiles + n, mask=n < num_tiles, other=0.0)
        cut = tl.load(tile_cut_ptr + row * num_tiles + n, mask=n < num_tiles, other=-1)
        tl.store(base_ptr + row * (num_tiles + 1) + n + 1, carry + tl.cumsum(total, 0), mask=n < num_tiles)
        latest = tl.maximum(tl.associative_scan(cut, 0, larger), cut_carry)
        tl.store(cut_before_ptr + row * (num_tiles + 1) + n + 1, latest, mask=n < num_tiles)
        carry += tl.sum(total, 0)
        cut_carry = tl.maximum(cut_carry, tl.max(cut, 0))
    tl.store(cut_before_ptr + row * (num_tiles + 1), 0)


@triton.jit(do_not_specialize=["Q", "T", "H", "num_tiles", "query_tiles", "window", "num_documents"])
def _limits_kernel(
    local_ptr, base_ptr, cut_ptr, cut_before_ptr, threshold_ptr, seq_start_ptr, cu_seqlens_ptr,
    first_key_ptr, start_ptr, Q, T, H, num_tiles, query_tiles, window, num_documents,
    DOCUMENT_STEPS: tl.constexpr, TILE_STEPS: tl.constexpr, PAD: tl.constexpr, PRUNE: tl.constexpr,
):  # fmt: skip
    """Compute per query tile the first visible key of each row, and the first key tile that any row needs."""
    m, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = m * _TILE + tl.arange(0, _TILE)
    position = i + (T - Q)
    inside = i < Q
    first = tl.load(cut_ptr + row * num_tiles * _TILE + position, mask=inside, other=0)
    first = tl.maximum(first, tl.load(cut_before_ptr + row * (num_tiles + 1) + position // _TILE, mask=inside, other=0))
    first = tl.maximum(first, position - (window - 1))
    if PAD:
        first = tl.maximum(first, tl.load(seq_start_ptr + row // H).to(tl.int32))
    if DOCUMENT_STEPS > 0:
        low = tl.zeros_like(position)  # invariant: cu_seqlens[low] <= position < cu_seqlens[high]
        high = low + num_documents
        for _ in range(DOCUMENT_STEPS):
            middle = (low + high) // 2
            right = tl.load(cu_seqlens_ptr + middle).to(tl.int32) <= position
            low = tl.where(right, middle, low)
            high = tl.where(right, high, middle)
        first = tl.maximum(first, tl.load(cu_seqlens_ptr + low).to(tl.int32))
    tl.store(first_key_ptr + row * Q + i, first, mask=inside)

    query = m * _TILE + (T - Q)
    tile = tl.min(tl.where(inside, first, T), 0) // _TILE
    if PRUNE:
        # Dropped tiles: those whose last key has c above c_query - threshold. c never increases, so they are a prefix.
        cum = tl.load(base_ptr + row * (num_tiles + 1) + query // _TILE) + tl.load(local_ptr + row * num_tiles * _TILE + query)
        limit = cum - tl.load(threshold_ptr + row).to(tl.float64) * _LOG2E
        low, high = 0, query // _TILE  # the tile that holds the query itself is kept
        for _ in range(TILE_STEPS):
            middle = (low + high) // 2
            dropped = (low < high) & (tl.load(base_ptr + row * (num_tiles + 1) + middle + 1) > limit)
            low, high = tl.where(dropped, middle + 1, low), tl.where(dropped, high, middle)
        tile = tl.maximum(tile, low)
    tl.store(start_ptr + row * query_tiles + m, tl.minimum(tile, query // _TILE))


@triton.jit(do_not_specialize=["T", "H", "num_tiles", "window"])
def _whole_kernel(
    gate_ptr, threshold_ptr, seq_start_ptr, local_ptr, base_ptr, first_key_ptr, start_ptr, taken_ptr,
    stride_b, stride_t, stride_h, T, H, num_tiles, window, TILES: tl.constexpr, PAD: tl.constexpr, PRUNE: tl.constexpr,
):  # fmt: skip
    """Fuse the three kernels above, for heads with Q == T and at most TILES tiles."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(taken_ptr, 0, mask=row == 0)
    local_ptr += row * num_tiles * _TILE
    base_ptr += row * (num_tiles + 1)
    n = tl.arange(0, TILES)
    t = n[:, None] * _TILE + tl.arange(0, _TILE)[None, :]
    gate = tl.load(gate_ptr + row // H * stride_b + row % H * stride_h + t.to(tl.int64) * stride_t, mask=t < T, other=0.0)
    is_cut = gate < _CUT
    gate = tl.where(is_cut, 0.0, gate).to(tl.float64) * _LOG2E
    tl.store(local_ptr + t, tl.cumsum(gate, 1).to(local_ptr.dtype.element_ty), mask=(n < num_tiles)[:, None])
    total = tl.sum(gate, 1)
    end = tl.cumsum(total, 0)
    tl.store(base_ptr, tl.zeros((), tl.float64))
    tl.store(base_ptr + n + 1, end, mask=n < num_tiles)
    cut = tl.reshape(tl.where(is_cut, t, 0), (TILES * _TILE,))
    first = tl.reshape(tl.associative_scan(cut, 0, larger), (TILES, _TILE))
    first = tl.maximum(first, t - (window - 1))
    if PAD:
        first = tl.maximum(first, tl.load(seq_start_ptr + row // H).to(tl.int32))
    tl.store(first_key_ptr + row * T + t, first, mask=t < T)
    tile = tl.min(tl.where(t < T, first, T), 1) // _TILE
    if PRUNE:
        own = tl.sum(tl.where(t % _TILE == 0, gate, 0.0), 1)  # of the tile's first query
        limit = end - total + own - tl.load(threshold_ptr + row).to(tl.float64) * _LOG2E
        dropped = (n[None, :] < n[:, None]) & (end[None, :] > limit[:, None])
        tile = tl.maximum(tile, tl.sum(dropped.to(tl.int32), 1))
    tl.store(start_ptr + row * num_tiles + n, tl.minimum(tile, n), mask=n < num_tiles)


def prepare(
    log_fgate: Tensor, num_queries: int, threshold: Tensor | None, seq_start: Tensor | None, cu_seqlens: Tensor | None,
    window_size: int | None, exact: bool,
) -> Prepared:  # fmt: skip
    """Launch one kernel, or three for long inputs; log_fgate (B, T, H) with any strides, threshold (B, H) or None."""
    B, T, H = log_fgate.shape
    Q, device = num_queries, log_fgate.device
    N, M = ceil_div(T, TILE), ceil_div(Q, TILE)
    window = T if window_size is None else min(window_size, T)

    def per_head(count: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(B, H, count, device=device, dtype=dtype)

    local = per_head(N * TILE, torch.float64 if exact else torch.float32)
    base, first_key, start = per_head(N + 1, torch.float64), per_head(Q), per_head(M)
    taken = torch.empty(1, device=device, dtype=torch.int32)
    if Q == T and N <= WHOLE_TILES and cu_seqlens is None:
        launch(
            _whole_kernel, (B * H,), (), (log_fgate, threshold, seq_start, local, base, first_key, start, taken),
            (*log_fgate.stride(), T, H, N, window),
            TILES=power_of_two(N), PAD=seq_start is not None, PRUNE=threshold is not None, num_warps=8,
        )  # fmt: skip
        return Prepared(local, base, first_key, start, taken)
    cut, sums, tile_cut, cut_before = per_head(N * TILE), per_head(N, torch.float64), per_head(N), per_head(N + 1)
    heads = min(power_of_two(H), 16)
    launch(
        _tile_sums_kernel, (N, B, ceil_div(H, heads)),
        (), (log_fgate, local, sums, cut, tile_cut), (*log_fgate.stride(), T, H, N), HEADS=heads,
    )  # fmt: skip
    block = min(power_of_two(N), 1024)
    launch(_tile_bases_kernel, (B * H,), (), (sums, tile_cut, base, cut_before, taken), (N,), BLOCK=block, num_warps=4)
    documents = 0 if cu_seqlens is None else cu_seqlens.numel() - 1
    launch(
        _limits_kernel, (M, B * H), (), (local, base, cut, cut_before, threshold, seq_start, cu_seqlens, first_key, start),
        (Q, T, H, N, M, window, documents), DOCUMENT_STEPS=documents.bit_length(), TILE_STEPS=N.bit_length(),
        PAD=seq_start is not None, PRUNE=threshold is not None, num_warps=1,
    )  # fmt: skip
    return Prepared(local, base, first_key, start, taken)
