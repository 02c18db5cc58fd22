"""Kernels before and after the main one of the Hopper backward pass, in plain Triton: the first prepares the statistics that it
loads with each step of queries, the second turns its sums into gradients. Legend: M queries of a step, D head dimension."""

import triton
import triton.language as tl

from ..portable.backward import gate_gradient_of_head, tile_spans
from ..visibility import TILE

STATS = 4
"""Statistics per query: lse, delta, the bits of its first key, and the numbers that `_shift` of the steps reads."""
_STATS = tl.constexpr(STATS)
_TILE = tl.constexpr(TILE)
_TILES_AT_ONCE = tl.constexpr(32)


@triton.jit
def _lost_near_diagonal(
    q_ptr, k_ptr, v_ptr, local_ptr, base_ptr, do_MD, lse_M, delta_M, first_key_M, rows_M, ref, q_t, k_t, v_t, scale2, Q, T,
    D: tl.constexpr,
):  # fmt: skip
    """Compute what rounding dS to 16 bits will remove from its row sums minus what it will remove from its column sums, over
    pairs of tokens of these rows: only the difference counts. With local gates nearly all of the weight is here."""
    d = tl.arange(0, D)[None, :]
    inside_M = rows_M < Q
    token_M = rows_M + (T - Q)
    q_MD = tl.load(q_ptr + rows_M.to(tl.int64)[:, None] * q_t + d, mask=inside_M[:, None], other=0.0)
    k_MD = tl.load(k_ptr + token_M.to(tl.int64)[:, None] * k_t + d, mask=inside_M[:, None], other=0.0)
    v_MD = tl.load(v_ptr + token_M.to(tl.int64)[:, None] * v_t + d, mask=inside_M[:, None], other=0.0)
    base_M = tl.load(base_ptr + token_M // _TILE, mask=inside_M, other=0.0)
    shift_M = (ref - base_M).to(tl.float32) - tl.load(local_ptr + token_M, mask=inside_M, other=0.0)
    p_MM = tl.exp2(tl.dot(q_MD, tl.trans(k_MD)) * scale2 + (shift_M[None, :] - lse_M[:, None]))
    seen_MM = (token_M[None, :] <= token_M[:, None]) & (token_M[None, :] >= first_key_M[:, None])
    ds_MM = tl.where(seen_MM, p_MM * (tl.dot(do_MD, tl.trans(v_MD)) - delta_M[:, None]), 0.0)
    lost_MM = ds_MM - ds_MM.to(q_ptr.dtype.element_ty).to(tl.float32)
    return tl.sum(lost_MM, 1) - tl.sum(lost_MM, 0)


@triton.jit(do_not_specialize=["rows", "Q", "T", "H", "query_steps", "num_tiles", "query_tiles"])
def before_kernel(
    o_ptr, do_ptr, lse_ptr, stat_ptr, start_ptr, first_key_ptr, even_ptr, q_ptr, k_ptr, v_ptr, local_ptr, base_ptr,
    do_b, do_q, do_h, do_d, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    scale2, rows, Q, T, H, query_steps, num_tiles, query_tiles,
    BLOCK_M: tl.constexpr, D: tl.constexpr, STEPS: tl.constexpr, LEAST_DECAY: tl.constexpr,
):  # fmt: skip
    """Write lse, delta and the first key of the rows of each step (+inf, 0 and T past the end); initialise dQ's sums to zeros,
    and the row sums to what rounding will remove. The programs of a head share the search for the spans of all key tiles.

    If the gates decay by fewer than LEAST_DECAY powers of two over the step's tokens, a row's other keys weigh as much, and
    the loss by rounding here would be invisible: the row sums start at 0."""
    row, step = (tl.program_id(0) % rows).to(tl.int64), tl.program_id(0) // rows
    batch, head = row // H, row % H
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)[None, :]
    rows_M = step * BLOCK_M + m
    inside_M1 = (rows_M < Q)[:, None]
    o_MD = tl.load(o_ptr + ((batch * Q + rows_M) * H + head)[:, None] * D + d, mask=inside_M1, other=0.0)
    at_MD = batch * do_b + rows_M.to(tl.int64)[:, None] * do_q + head * do_h + d * do_d
    do_MD = tl.load(do_ptr + at_MD, mask=inside_M1, other=0.0)
    delta_M = tl.sum(o_MD.to(tl.float32) * do_MD.to(tl.float32), 1)
    lse_M = tl.load(lse_ptr + row * Q + rows_M, mask=rows_M < Q, other=float("inf"))
    at = row * query_steps + step
    steps = query_steps.to(tl.int64) * rows
    buffer_ptr = stat_ptr + steps * (_STATS * BLOCK_M)
    rowsum_ptr = buffer_ptr + steps * (BLOCK_M * D)
    stop_ptr = even_ptr + num_tiles * rows
    tl.store(even_ptr + 2 * num_tiles * rows + at, 0)
    first_key_M = tl.load(first_key_ptr + row * Q + rows_M, mask=rows_M < Q, other=T)
    stat_ptr += at * (_STATS * BLOCK_M) + m
    tl.store(stat_ptr, lse_M)
    tl.store(stat_ptr + BLOCK_M, delta_M)
    tl.store(stat_ptr + 2 * BLOCK_M, first_key_M.to(tl.float32, bitcast=True))
    local_ptr += row * (num_tiles * _TILE)
    base_ptr += row * (num_tiles + 1)
    first = step * BLOCK_M // _TILE * _TILE + (T - Q)
    ref = tl.load(base_ptr + first // _TILE) + tl.load(local_ptr + first)  # the reference of lse
    high = ref.to(tl.float32)
    low = (ref - high.to(tl.float64)).to(tl.float32)
    tl.store(stat_ptr + 3 * BLOCK_M, tl.where(m == 0, high, low))
    tl.store(buffer_ptr + at * (BLOCK_M * D) + tl.arange(0, BLOCK_M * D), tl.zeros((BLOCK_M * D,), tl.float32))
    token = step * BLOCK_M + (T - Q)
    last = tl.minimum(token + BLOCK_M, T) - 1
    decay = tl.load(base_ptr + token // _TILE) + tl.load(local_ptr + token)
    decay -= tl.load(base_ptr + last // _TILE) + tl.load(local_ptr + last)
    sums_M = tl.zeros((BLOCK_M,), tl.float32)
    if (decay < LEAST_DECAY) == 0:  # also true if -inf gates make it NaN
        sums_M = _lost_near_diagonal(
            q_ptr + batch * q_b + head * q_h, k_ptr + batch * k_b + head * k_h, v_ptr + batch * v_b + head * v_h,
            local_ptr, base_ptr, do_MD, lse_M, delta_M, first_key_M, rows_M, ref, q_t, k_t, v_t, scale2, Q, T, D,
        )  # fmt: skip
    tl.store(rowsum_ptr + at * BLOCK_M + m, sums_M)
    for part in range(step, tl.cdiv(num_tiles, _TILES_AT_ONCE), query_steps):
        n = part * _TILES_AT_ONCE + tl.arange(0, _TILES_AT_ONCE)
        tile_spans(start_ptr, first_key_ptr, even_ptr, stop_ptr, row, n, Q, num_tiles, query_tiles, STEPS)


@triton.jit(do_not_specialize=["rows", "Q", "T", "H", "query_steps"])
def after_kernel(
    scratch_ptr, dq_ptr, dgate_ptr, scale, rows, Q, T, H, query_steps,
    BLOCK_M: tl.constexpr, D: tl.constexpr, WARPS_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gates' gradient in each head's first program; these start before all others, as they take longest. The others
    convert dQ from register order to (B, Q, H, D), scaled and rounded."""
    row, step = (tl.program_id(0) % rows).to(tl.int64), tl.program_id(0) // rows - 1
    steps = query_steps.to(tl.int64) * rows
    buffer_ptr = scratch_ptr + steps * (_STATS * BLOCK_M)
    if step < 0:
        rowsum_ptr = buffer_ptr + steps * (BLOCK_M * D)
        column_ptr = rowsum_ptr + steps * BLOCK_M
        gate_gradient_of_head(rowsum_ptr, column_ptr, dgate_ptr, row, Q, T, H, query_steps * BLOCK_M, BLOCK)
    else:
        batch, head = row // H, row % H
        buffer_ptr += (row * query_steps + step) * (BLOCK_M * D)
        flat = tl.load(buffer_ptr + tl.arange(0, BLOCK_M * D))
        parts = tl.reshape(flat, (D // WARPS_N // 8, WARPS_N, BLOCK_M // 16, 8, 4, 2, 2))
        dq_MD = tl.reshape(tl.permute(parts, (2, 5, 3, 1, 0, 4, 6)), (BLOCK_M, D)) * scale
        rows_M = step * BLOCK_M + tl.arange(0, BLOCK_M)
        out = ((batch * Q + rows_M) * H + head)[:, None] * D + tl.arange(0, D)[None, :]
        tl.store(dq_ptr + out, dq_MD.to(dq_ptr.dtype.element_ty), mask=(rows_M < Q)[:, None])
