"""Backward kernels for any GPU: dK and dV per key tile, dQ per query tile, then the gates. Deterministic.

The probabilities are recomputed from `lse`. With dS_ij = P_ij (dO_i . V_j - delta_i) and delta_i = dO_i . O_i, the gradient of
c_t is the row sum of dS at t minus its column sum. Row sums are 0 only up to the rounding of O, which would accumulate along
the reverse cumulative sum; so the row sums of the same dS are used, and the terms of pairs that do not span a gate cancel.

Nothing overflows: `lse` covers every visible key, so P is at most 1 up to the rounding of its exponent. exp2 of a masked pair
may be inf; it is replaced, not multiplied by 0. A row that sees nothing has lse = +inf and P = 0.

Legend: M queries of a step or tile, N keys of a tile or step, D head dimension."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention_shared.launch import ceil_div, launch
from ...attention_shared.tiles import Tiles
from ..visibility import TILE
from .forward import query_block, tile_logits
from .prepare import LOG2E, Prepared

_TILE = tl.constexpr(TILE)


@triton.jit(do_not_specialize=["Q", "H"])
def _delta_kernel(
    o_ptr, do_ptr, delta_ptr, stride_b, stride_q, stride_h, stride_d, Q, H, BLOCK_M: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Compute delta_i = dO_i . O_i for rows of one head; O is contiguous (B, Q, H, D), dO has strides."""
    row = tl.program_id(1).to(tl.int64)
    rows_M = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    batch, head = row // H, row % H
    d = tl.arange(0, D)
    inside = (rows_M < Q)[:, None]
    o = tl.load(o_ptr + ((batch * Q + rows_M) * H + head)[:, None] * D + d[None, :], mask=inside, other=0.0)
    offset = batch * stride_b + rows_M.to(tl.int64)[:, None] * stride_q + head * stride_h + d[None, :] * stride_d
    do = tl.load(do_ptr + offset, mask=inside, other=0.0)
    delta_M = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(delta_ptr + row * Q + rows_M, delta_M, mask=rows_M < Q)


@triton.jit
def tile_spans(start_ptr, first_key_ptr, even_ptr, stop_ptr, row, n, Q, num_tiles, query_tiles, STEPS: tl.constexpr):
    """Find for key tiles n the first query tile in which some row may not see all of it, and the first that does not need
    it."""
    low, high = tl.zeros_like(n), tl.zeros_like(n) + query_tiles
    even_low, even_high = low, high
    for _ in range(STEPS):
        middle = (low + high) // 2
        needed = tl.load(start_ptr + row * query_tiles + middle, mask=low < high, other=0) <= n
        low, high = tl.where(needed & (low < high), middle + 1, low), tl.where(needed, high, middle)
        middle = (even_low + even_high) // 2
        last_row = tl.minimum(middle * _TILE + _TILE, Q) - 1
        even = tl.load(first_key_ptr + row * Q + last_row, mask=even_low < even_high, other=0) <= n * _TILE
        even_low, even_high = tl.where(even & (even_low < even_high), middle + 1, even_low), tl.where(even, even_high, middle)
    tl.store(even_ptr + row * num_tiles + n, even_low, mask=n < num_tiles)
    tl.store(stop_ptr + row * num_tiles + n, low, mask=n < num_tiles)


@triton.jit(do_not_specialize=["Q", "num_tiles", "query_tiles"])
def _spans_kernel(start_ptr, first_key_ptr, even_ptr, stop_ptr, Q, num_tiles, query_tiles, STEPS: tl.constexpr):
    n = tl.program_id(0) * _TILE + tl.arange(0, _TILE)
    row = tl.program_id(1).to(tl.int64)
    tile_spans(start_ptr, first_key_ptr, even_ptr, stop_ptr, row, n, Q, num_tiles, query_tiles, STEPS)


@triton.jit
def _walk_queries(
    dk_ND, dv_ND, column_N, k_ND, v_ND, q_desc, do_desc, lse_ptr, delta_ptr, local_ptr, base_ptr, first_key_ptr,
    batch, head, keys_N, local_N, base, start, stop, scale2, Q, T,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    EDGE: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Loop over queries start..stop for one key tile, all products transposed: keys are rows, queries columns."""
    for m in tl.range(start, stop, BLOCK_M):
        m = tl.multiple_of(m, BLOCK_M)
        rows_M = m + tl.arange(0, BLOCK_M)
        q_MD = q_desc.load([batch, m, head, 0]).reshape(BLOCK_M, D)
        s_NM = tl.dot(k_ND, q_MD.T, input_precision=PRECISION)
        lse_M = tl.load(lse_ptr + rows_M, mask=rows_M < Q, other=float("inf"))
        position_M = rows_M + (T - Q)
        if EXACT:
            cum_M = tl.load(base_ptr + position_M // _TILE, mask=rows_M < Q, other=0.0)
            cum_M += tl.load(local_ptr + position_M, mask=rows_M < Q, other=0.0)
            x_NM = s_NM * scale2 + (cum_M[None, :] - (base + local_N)[:, None]).to(tl.float32) - lse_M[None, :]
        else:
            query = m // _TILE * _TILE + (T - Q)  # lse is relative to this query's c
            ref = tl.load(base_ptr + query // _TILE) + tl.load(local_ptr + query)
            x_NM = (s_NM * scale2 - local_N[:, None]) + ((ref - base).to(tl.float32) - lse_M)[None, :]
        p_NM = tl.exp2(x_NM)
        if EDGE:
            first_M = tl.load(first_key_ptr + rows_M, mask=rows_M < Q, other=T)
            seen_NM = (keys_N[:, None] <= position_M[None, :]) & (keys_N[:, None] >= first_M[None, :])
            p_NM = tl.where(seen_NM, p_NM, 0.0)
        do_MD = do_desc.load([batch, m, head, 0]).reshape(BLOCK_M, D)
        dv_ND = tl.dot(p_NM.to(do_MD.dtype), do_MD, dv_ND, input_precision=PRECISION)
        dp_NM = tl.dot(v_ND, do_MD.T, input_precision=PRECISION)
        delta_M = tl.load(delta_ptr + rows_M, mask=rows_M < Q, other=0.0)
        ds_NM = p_NM * (dp_NM - delta_M[None, :])
        dk_ND = tl.dot(ds_NM.to(q_MD.dtype), q_MD, dk_ND, input_precision=PRECISION)
        column_N += tl.sum(ds_NM, 1)
    return dk_ND, dv_ND, column_N


@triton.jit(do_not_specialize=["Q", "T", "H", "num_tiles"])
def dkdv_kernel(
    q_desc, k_desc, v_desc, do_desc, dk_ptr, dv_ptr, column_ptr, lse_ptr, delta_ptr,
    local_ptr, base_ptr, first_key_ptr, even_ptr, stop_ptr, scale2, scale, Q, T, H, num_tiles,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N  # early keys have the most queries: start them first
    key_heads = H // GROUP
    batch, key_head = tl.program_id(1) // key_heads, tl.program_id(1) % key_heads
    keys_N = n + tl.arange(0, BLOCK_N)
    tile = n // _TILE
    k_ND = k_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
    v_ND = v_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
    dk_ND = tl.zeros((BLOCK_N, D), tl.float32)
    dv_ND = tl.zeros((BLOCK_N, D), tl.float32)
    query_tiles = (Q + _TILE - 1) // _TILE
    offset = T - Q
    for member in range(GROUP):
        head = key_head * GROUP + member
        row = batch.to(tl.int64) * H + head
        local, bases = local_ptr + row * num_tiles * _TILE, base_ptr + row * (num_tiles + 1)
        local_N = tl.load(local + keys_N, mask=keys_N < T, other=0.0)
        base = tl.load(bases + tile)
        column_N = tl.zeros((BLOCK_N,), tl.float32)
        # Queries: those on the diagonal, then those that see the whole tile, then those that see part of it.
        diagonal = tl.maximum(n - offset, 0) // BLOCK_M * BLOCK_M
        stop = tl.minimum(tl.load(stop_ptr + row * num_tiles + tile), query_tiles) * _TILE
        stop = tl.minimum(stop, (Q + BLOCK_M - 1) // BLOCK_M * BLOCK_M)
        whole = (tl.maximum(n + BLOCK_N - 1 - offset, 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M
        whole = tl.minimum(whole, stop)
        partial = tl.minimum(tl.maximum(tl.load(even_ptr + row * num_tiles + tile) * _TILE, whole), stop)
        for part in tl.static_range(3):
            first = diagonal if part == 0 else (whole if part == 1 else partial)
            last = whole if part == 0 else (partial if part == 1 else stop)
            dk_ND, dv_ND, column_N = _walk_queries(
                dk_ND, dv_ND, column_N, k_ND, v_ND, q_desc, do_desc, lse_ptr + row * Q,
                delta_ptr + row * Q, local, bases, first_key_ptr + row * Q, batch, head, keys_N, local_N, base,
                first, last, scale2, Q, T, BLOCK_M, BLOCK_N, D, part != 1, EXACT, PRECISION,
            )  # fmt: skip
        tl.store(column_ptr + row * T + keys_N, column_N, mask=keys_N < T)
    out = ((batch.to(tl.int64) * T + keys_N) * key_heads + key_head)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dk_ptr + out, (dk_ND * scale).to(dk_ptr.dtype.element_ty), mask=(keys_N < T)[:, None])
    tl.store(dv_ptr + out, dv_ND.to(dv_ptr.dtype.element_ty), mask=(keys_N < T)[:, None])


@triton.jit
def _walk_keys(
    dq_MD, sum_M, q_MD, do_MD, k_desc, v_desc, local_ptr, base_ptr, batch, key_head, position_M, first_M, lse_M, delta_M,
    ref, cum_M, start, stop, scale2, T, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    EDGE: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Loop over keys start..stop for one query tile."""
    for n in tl.range(start, stop, BLOCK_N):
        n = tl.multiple_of(n, BLOCK_N)
        keys_N = n + tl.arange(0, BLOCK_N)
        k_ND = k_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
        s_MN = tl.dot(q_MD, k_ND.T, input_precision=PRECISION)
        x_MN = tile_logits(s_MN, local_ptr, base_ptr, keys_N, n, ref, cum_M, scale2, T, EDGE, EXACT)
        p_MN = tl.exp2(x_MN - lse_M[:, None])
        if EDGE:
            seen_MN = (keys_N[None, :] <= position_M[:, None]) & (keys_N[None, :] >= first_M[:, None])
            p_MN = tl.where(seen_MN, p_MN, 0.0)
        v_ND = v_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
        dp_MN = tl.dot(do_MD, v_ND.T, input_precision=PRECISION)
        ds_MN = p_MN * (dp_MN - delta_M[:, None])
        sum_M += tl.sum(ds_MN, 1)
        dq_MD = tl.dot(ds_MN.to(k_ND.dtype), k_ND, dq_MD, input_precision=PRECISION)
    return dq_MD, sum_M


@triton.jit(do_not_specialize=["Q", "T", "H", "num_tiles", "query_tiles"])
def dq_kernel(
    q_desc, k_desc, v_desc, do_desc, dq_ptr, rowsum_ptr, lse_ptr, delta_ptr, local_ptr, base_ptr, first_key_ptr, start_ptr,
    scale2, scale, Q, T, H, num_tiles, query_tiles,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m = tl.num_programs(0) - 1 - tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    batch, head = (row // H).to(tl.int32), (row % H).to(tl.int32)
    key_head = head // GROUP
    local_ptr += row * num_tiles * _TILE
    base_ptr += row * (num_tiles + 1)
    rows_M, position_M, first_M, ref, cum_M, start, uneven, diagonal, end = query_block(
        m, row, local_ptr, base_ptr, first_key_ptr, start_ptr, Q, T, query_tiles, BLOCK_M, BLOCK_N, EXACT
    )
    inside_M = rows_M < Q
    lse_M = tl.load(lse_ptr + row * Q + rows_M, mask=inside_M, other=float("inf"))
    delta_M = tl.load(delta_ptr + row * Q + rows_M, mask=inside_M, other=0.0)
    q_MD = q_desc.load([batch, m * BLOCK_M, head, 0]).reshape(BLOCK_M, D)
    do_MD = do_desc.load([batch, m * BLOCK_M, head, 0]).reshape(BLOCK_M, D)
    dq_MD = tl.zeros((BLOCK_M, D), tl.float32)
    sum_M = tl.zeros((BLOCK_M,), tl.float32)
    for part in tl.static_range(3):
        first = start if part == 0 else (uneven if part == 1 else diagonal)
        last = uneven if part == 0 else (diagonal if part == 1 else end)
        dq_MD, sum_M = _walk_keys(
            dq_MD, sum_M, q_MD, do_MD, k_desc, v_desc, local_ptr, base_ptr, batch, key_head, position_M, first_M, lse_M,
            delta_M, ref, cum_M, first, last, scale2, T, BLOCK_M, BLOCK_N, D, part != 1, EXACT, PRECISION,
        )  # fmt: skip
    out = ((batch.to(tl.int64) * Q + rows_M) * H + head)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dq_ptr + out, (dq_MD * scale).to(dq_ptr.dtype.element_ty), mask=inside_M[:, None])
    tl.store(rowsum_ptr + row * Q + rows_M, sum_M, mask=inside_M)


@triton.jit
def gate_gradient_of_head(rowsum_ptr, column_ptr, dgate_ptr, row, Q, T, H, num_sums, BLOCK: tl.constexpr):
    """Compute d log f_t = sum over s >= t of (row sum - column sum of dS at s), identity I5; 0 for the first token."""
    batch, head = row // H, row % H
    carry = tl.zeros((), tl.float64)
    for step in range(tl.cdiv(T, BLOCK)):
        t = (tl.cdiv(T, BLOCK) - 1 - step) * BLOCK + tl.arange(0, BLOCK)
        i = t - (T - Q)
        gain = tl.load(rowsum_ptr + row * num_sums + i, mask=(i >= 0) & (t < T), other=0.0).to(tl.float64)
        gain -= tl.load(column_ptr + row * T + t, mask=t < T, other=0.0)
        total = carry + tl.cumsum(gain, 0, reverse=True)
        dgate = tl.where(t == 0, 0.0, total).to(tl.float32)
        tl.store(dgate_ptr + (batch * T + t) * H + head, dgate, mask=t < T)
        carry += tl.sum(gain, 0)


@triton.jit(do_not_specialize=["Q", "T", "H", "num_sums"])
def _gate_gradient_kernel(rowsum_ptr, column_ptr, dgate_ptr, Q, T, H, num_sums, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    gate_gradient_of_head(rowsum_ptr, column_ptr, dgate_ptr, row, Q, T, H, num_sums, BLOCK)


def backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, prepared: Prepared, scale: float,
    dkdv: Tiles, tiles: Tiles,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk, dv in the inputs' dtype and d log_fgate (B, T, H) float32, all contiguous."""
    B, Q, H, D = q.shape
    T, key_heads = k.shape[1:3]
    N, M = prepared.base.shape[-1] - 1, prepared.start.shape[-1]
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    rowsum, delta = (torch.empty(B, H, Q, device=q.device, dtype=torch.float32) for _ in range(2))
    column = torch.empty(B, H, T, device=q.device, dtype=torch.float32)
    even, stop = (torch.empty(B, H, N, device=q.device, dtype=torch.int32) for _ in range(2))
    launch(
        _spans_kernel, (ceil_div(N, TILE), B * H),
        (), (prepared.start, prepared.first_key, even, stop), (Q, N, M), STEPS=M.bit_length(), num_warps=1,
    )  # fmt: skip
    launch(_delta_kernel, (ceil_div(Q, 64), B * H), (), (o, do, delta), (*do.stride(), Q, H), BLOCK_M=64, D=D)
    launch(
        dkdv_kernel, (ceil_div(T, dkdv.block_n), B * key_heads), dkdv.described(q, k, v, do),
        (dk, dv, column, lse, delta, prepared.local, prepared.base, prepared.first_key, even, stop),
        (scale * LOG2E, scale, Q, T, H, N), GROUP=H // key_heads, **dkdv.options(q),
    )  # fmt: skip
    launch(
        dq_kernel, (ceil_div(Q, tiles.block_m), B * H), tiles.described(q, k, v, do),
        (dq, rowsum, lse, delta, *prepared[:4]), (scale * LOG2E, scale, Q, T, H, N, M),
        GROUP=H // key_heads, **tiles.options(q),
    )  # fmt: skip
    dgate = torch.empty(B, T, H, device=q.device, dtype=torch.float32)
    launch(_gate_gradient_kernel, (B * H,), (), (rowsum, column, dgate), (Q, T, H, Q), BLOCK=1024)
    return dq, dk, dv, dgate
