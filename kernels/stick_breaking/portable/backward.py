"""Backward kernels: dQ per query tile, then dK and dV per key tile. No atomics, no locks, deterministic.

With z_ij the logits, beta_ij = sigmoid(z_ij) and S_ij = -log(1 - beta_ij), the forward pass is

    log A_ij = log beta_ij - sum over visible k > j of S_ik,        log r_i = - sum over all visible k of S_ik.

Let G_ij = A_ij dA_ij = A_ij (dO_i . V_j) be the gradient of log A_ij, and R_i = r_i dr_i that of log r_i. z_ij enters log A_ij
through log beta_ij, whose derivative is 1 - beta_ij, and all older terms through S_ij, whose derivative is beta_ij:

    dz_ij = (1 - beta_ij) G_ij - beta_ij (sum over j' < j of G_ij' + R_i) = G_ij - beta_ij (sum over j' <= j of G_ij' + R_i).

So a tile needs two numbers per row from other tiles: the sum of S over nearer keys, for A, and the sum of G over older keys.
The dQ kernel loops over a row's tiles from the oldest that the forward pass visited to the nearest: it starts with the row's
total of S and subtracts (in float64) that of each tile, and accumulates G from the far end, where it is small. It writes both
numbers per (key tile, row) to a workspace for the dK, dV kernel, which can then process its tiles in any order. Sums within a
tile are products with triangular matrices, as in the forward kernel; those of G in the inputs' dtype, like dz itself.

The workspace grows with T^2 / block_n, so heads are processed in groups that need no more than `WORKSPACE_BYTES`.

Legend: M queries of a tile or step, N keys of a step or tile, D head dimension."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention_shared.launch import ceil_div, launch
from ...attention_shared.tiles import rows_descriptor
from .forward import LOG2E, less_nearer, shares, visible
from .tiles import GRAIN, Plan

WORKSPACE_BYTES = 2**29
_GRAIN = tl.constexpr(GRAIN)
_SCAN = tl.constexpr(1024)


@triton.jit
def _plus_older(N: tl.constexpr, dtype: tl.constexpr):
    """Return an (N, N) matrix with which x_MN @ matrix is the sum over the older (earlier) keys."""
    return tl.where(tl.arange(0, N)[:, None] < tl.arange(0, N)[None, :], 1.0, 0.0).to(dtype)


@triton.jit
def _shares(q_MD, k_ND, n, limit_M, first_M, scale2, EDGE: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr):
    """Compute log2 beta and -log2(1 - beta) of one tile, as in the forward pass."""
    log_beta_MN, spent_MN = shares(tl.dot(q_MD, k_ND.T, input_precision=PRECISION) * scale2, EXACT)
    if EDGE:
        spent_MN = tl.where(visible(n, limit_M, first_M, k_ND.shape[0]), spent_MN, 0.0)
    return log_beta_MN, spent_MN


@triton.jit
def _gradients(
    log_beta_MN, spent_MN, nearer_M, older_M, do_MD, v_ND, n, limit_M, first_M, nearer_NN, older_NN,
    EDGE: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute A, G and dz of one tile."""
    log_a_MN = log_beta_MN - nearer_M[:, None]
    log_a_MN = tl.dot(spent_MN.to(nearer_NN.dtype), nearer_NN, log_a_MN, input_precision=PRECISION)
    a_MN = tl.exp2(log_a_MN)
    if EDGE:
        a_MN = tl.where(visible(n, limit_M, first_M, v_ND.shape[0]), a_MN, 0.0)
    g_MN = a_MN * tl.dot(do_MD, v_ND.T, input_precision=PRECISION)
    if EXACT:  # the difference below would lose the digits of a small 1 - beta
        older_MN = tl.dot(g_MN, older_NN, input_precision=PRECISION) + older_M[:, None]
        dz_MN = tl.exp2(-spent_MN) * g_MN - tl.exp2(log_beta_MN) * older_MN
    else:
        older_MN = tl.dot(g_MN.to(older_NN.dtype), older_NN, g_MN + older_M[:, None], input_precision=PRECISION)
        dz_MN = g_MN - tl.exp2(log_beta_MN) * older_MN
    if EDGE:
        dz_MN = tl.where(visible(n, limit_M, first_M, v_ND.shape[0]), dz_MN, 0.0)
    return a_MN, g_MN, dz_MN


@triton.jit
def _walk_keys(
    dq_MD, spent_M, older_M, q_MD, do_MD, k_desc, v_desc, nearer_ptr, older_ptr, batch, key_head, rows_M, limit_M, first_M,
    nearer_NN, older_NN, start, stop, scale2, Q,
    BLOCK_N: tl.constexpr, D: tl.constexpr, EDGE: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Loop over keys start..stop for one query tile, oldest first."""
    for n in tl.range(start, stop, BLOCK_N):
        n = tl.multiple_of(n, BLOCK_N)
        k_ND = k_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
        log_beta_MN, spent_MN = _shares(q_MD, k_ND, n, limit_M, first_M, scale2, EDGE, EXACT, PRECISION)
        spent_M -= tl.sum(spent_MN, 1).to(tl.float64)
        nearer_M = spent_M.to(tl.float32)
        at = (n // BLOCK_N).to(tl.int64) * Q + rows_M
        tl.store(nearer_ptr + at, nearer_M, mask=rows_M < Q)
        tl.store(older_ptr + at, older_M, mask=rows_M < Q)
        v_ND = v_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
        _, g_MN, dz_MN = _gradients(
            log_beta_MN, spent_MN, nearer_M, older_M, do_MD, v_ND, n, limit_M, first_M, nearer_NN, older_NN,
            EDGE, EXACT, PRECISION,
        )  # fmt: skip
        dq_MD = tl.dot(dz_MN.to(k_ND.dtype), k_ND, dq_MD, input_precision=PRECISION)
        older_M += tl.sum(g_MN, 1)
    return dq_MD, spent_M, older_M


@triton.jit(do_not_specialize=["Q", "T", "H", "grains", "num_tiles", "first_row"])
def dq_kernel(
    k_desc, v_desc, q_ptr, do_ptr, first_key_ptr, remainder_ptr, dremainder_ptr, spent_ptr, oldest_ptr,
    dq_ptr, nearer_ptr, older_ptr, scale2, scale, Q, T, H, grains, num_tiles, first_row,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, CURRENT: tl.constexpr,
    LIMITS: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m = tl.num_programs(0) - 1 - tl.program_id(0)
    row = first_row + tl.program_id(1).to(tl.int64)
    batch, head = (row // H).to(tl.int32), (row % H).to(tl.int32)
    nearer_ptr += tl.program_id(1).to(tl.int64) * num_tiles * Q
    older_ptr += tl.program_id(1).to(tl.int64) * num_tiles * Q
    rows_M = m * BLOCK_M + tl.arange(0, BLOCK_M)
    inside_M = rows_M < Q
    limit_M = rows_M + (T - Q) + CURRENT
    first_M = tl.where(inside_M, 0, T)
    if LIMITS:
        first_M = tl.load(first_key_ptr + batch.to(tl.int64) * Q + rows_M, mask=inside_M, other=T)
    end = (tl.minimum(m * BLOCK_M + BLOCK_M, Q) - 1 + T - Q + CURRENT + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    oldest = tl.load(oldest_ptr + row * grains + m * BLOCK_M // _GRAIN)
    whole = tl.maximum((m * BLOCK_M + T - Q + CURRENT) // BLOCK_N * BLOCK_N, oldest)

    out_M = (batch.to(tl.int64) * Q + rows_M) * H + head
    older_M = tl.load(remainder_ptr + out_M, mask=inside_M, other=0.0)
    older_M *= tl.load(dremainder_ptr + out_M, mask=inside_M, other=0.0)
    spent_M = tl.load(spent_ptr + row * Q + rows_M, mask=inside_M, other=float("inf"))  # no weights past the end
    out_MD = out_M[:, None] * D + tl.arange(0, D)[None, :]
    # Loaded by pointers they stay in shared memory; from a descriptor they would fill registers during the whole loop.
    q_MD = tl.load(q_ptr + out_MD, mask=inside_M[:, None], other=0.0)
    do_MD = tl.load(do_ptr + out_MD, mask=inside_M[:, None], other=0.0)
    nearer_NN = less_nearer(BLOCK_N, tl.float32 if EXACT else tl.float16)
    older_NN = _plus_older(BLOCK_N, q_MD.dtype)
    dq_MD = tl.zeros((BLOCK_M, D), tl.float32)
    for part in tl.static_range(2):
        dq_MD, spent_M, older_M = _walk_keys(
            dq_MD, spent_M, older_M, q_MD, do_MD, k_desc, v_desc, nearer_ptr, older_ptr, batch, head // GROUP,
            rows_M, limit_M, first_M, nearer_NN, older_NN, oldest if part == 0 else whole, whole if part == 0 else end,
            scale2, Q, BLOCK_N, D, LIMITS or part == 1, EXACT, PRECISION,
        )  # fmt: skip
    tl.store(dq_ptr + out_MD, (dq_MD * scale).to(dq_ptr.dtype.element_ty), mask=inside_M[:, None])


@triton.jit
def _walk_queries(
    dk_ND, dv_ND, k_ND, v_ND, q_desc, do_desc, first_key_ptr, nearer_ptr, older_ptr, batch, head, n, nearer_NN, older_NN,
    first, last, start, stop, scale2, Q, T, BLOCK_M: tl.constexpr, D: tl.constexpr, CURRENT: tl.constexpr,
    LIMITS: tl.constexpr, EDGE: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Loop over queries start..stop in whole steps for one key tile. Only queries first..last have any stick left, the others
    no weight. EDGE: some pairs are masked, including those of queries that see no key of the tile and wrote no workspace."""
    for m in tl.range(start, stop, BLOCK_M):
        m = tl.multiple_of(m, BLOCK_M)
        rows_M = m + tl.arange(0, BLOCK_M)
        limit_M = rows_M + (T - Q) + CURRENT
        first_M = tl.zeros_like(rows_M)
        if LIMITS:
            first_M = tl.load(first_key_ptr + batch.to(tl.int64) * Q + rows_M, mask=rows_M < Q, other=T)
        here_M = (rows_M >= first) & (rows_M < last)
        nearer_M = tl.load(nearer_ptr + rows_M, mask=here_M, other=float("inf"))
        older_M = tl.load(older_ptr + rows_M, mask=here_M, other=0.0)
        q_MD = q_desc.load([batch, m, head, 0]).reshape(BLOCK_M, D)
        log_beta_MN, spent_MN = _shares(q_MD, k_ND, n, limit_M, first_M, scale2, EDGE, EXACT, PRECISION)
        do_MD = do_desc.load([batch, m, head, 0]).reshape(BLOCK_M, D)
        a_MN, _, dz_MN = _gradients(
            log_beta_MN, spent_MN, nearer_M, older_M, do_MD, v_ND, n, limit_M, first_M, nearer_NN, older_NN,
            EDGE, EXACT, PRECISION,
        )  # fmt: skip
        dv_ND = tl.dot(a_MN.to(do_MD.dtype).T, do_MD, dv_ND, input_precision=PRECISION)
        dk_ND = tl.dot(dz_MN.to(q_MD.dtype).T, q_MD, dk_ND, input_precision=PRECISION)
    return dk_ND, dv_ND


@triton.jit(do_not_specialize=["Q", "T", "H", "grains", "num_tiles", "first_row"])
def dkdv_kernel(
    q_desc, do_desc, k_desc, v_desc, first_key_ptr, oldest_ptr, nearer_ptr, older_ptr, dk_ptr, dv_ptr,
    scale2, scale, Q, T, H, grains, num_tiles, first_row,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, CURRENT: tl.constexpr,
    LIMITS: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N  # early keys can have the most queries: start them first
    key_heads = H // GROUP
    key_row = first_row // GROUP + tl.program_id(1)
    batch, key_head = key_row // key_heads, key_row % key_heads
    keys_N = n + tl.arange(0, BLOCK_N)
    k_ND = k_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
    v_ND = v_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
    dk_ND = tl.zeros((BLOCK_N, D), tl.float32)
    dv_ND = tl.zeros((BLOCK_N, D), tl.float32)
    nearer_NN = less_nearer(BLOCK_N, tl.float32 if EXACT else tl.float16)
    older_NN = _plus_older(BLOCK_N, k_ND.dtype)
    nearest = tl.maximum(n + 1 - CURRENT - (T - Q), 0) // _GRAIN  # the first queries that see a key of the tile
    whole = (tl.maximum(n + BLOCK_N - CURRENT - (T - Q), 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M  # these see all of it
    for member in range(GROUP):
        head = key_head * GROUP + member
        local = (tl.program_id(1) * GROUP + member).to(tl.int64) * num_tiles + tl.program_id(0)
        oldest = oldest_ptr + (batch.to(tl.int64) * H + head) * grains
        # Find the runs of queries that visited this tile, _SCAN grains at a time.
        for scan in range(nearest // _SCAN * _SCAN, grains, _SCAN):
            grain = scan + tl.arange(0, _SCAN)
            here = tl.load(oldest + grain, mask=(grain < grains) & (grain >= nearest), other=T) <= n
            first = tl.min(tl.where(here, grain, grains), 0)
            while first < grains:
                grain = scan + tl.arange(0, _SCAN)
                here = tl.load(oldest + grain, mask=(grain < grains) & (grain >= first), other=T) <= n
                last = tl.minimum(tl.min(tl.where(here | (grain < first), scan + _SCAN, grain), 0), grains)
                begin = first * _GRAIN // BLOCK_M * BLOCK_M
                middle = tl.minimum(tl.maximum(begin, whole), last * _GRAIN)
                for part in tl.static_range(2):
                    dk_ND, dv_ND = _walk_queries(
                        dk_ND, dv_ND, k_ND, v_ND, q_desc, do_desc, first_key_ptr, nearer_ptr + local * Q,
                        older_ptr + local * Q, batch, head, n, nearer_NN, older_NN, first * _GRAIN,
                        tl.minimum(last * _GRAIN, Q), begin if part == 0 else middle, middle if part == 0 else last * _GRAIN,
                        scale2, Q, T, BLOCK_M, D, CURRENT, LIMITS, LIMITS or part == 0, EXACT, PRECISION,
                    )  # fmt: skip
                first = tl.min(tl.where(here & (grain >= last), grain, grains), 0)
    out = ((batch.to(tl.int64) * T + keys_N) * key_heads + key_head)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dk_ptr + out, (dk_ND * scale).to(dk_ptr.dtype.element_ty), mask=(keys_N < T)[:, None])
    tl.store(dv_ptr + out, dv_ND.to(dv_ptr.dtype.element_ty), mask=(keys_N < T)[:, None])


def backward(
    do: Tensor, dremainder: Tensor, q: Tensor, k: Tensor, v: Tensor, remainder: Tensor, spent: Tensor, oldest: Tensor,
    first_key: Tensor | None, scale: float, attend_current: bool, plan: Plan,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk, dv in the inputs' dtype, contiguous; remainder and dremainder are contiguous (B, Q, H) float32."""
    q, do = q.contiguous(), do.contiguous()
    B, Q, H, _ = q.shape
    T, key_heads = k.shape[1:3]
    group, block_n = H // key_heads, plan.dq.block_n
    num_tiles, grains = ceil_div(T, block_n), oldest.shape[-1]
    dq, dk, dv = (torch.empty(x.shape, device=q.device, dtype=q.dtype) for x in (q, k, v))
    key_rows = max(1, min(B * key_heads, WORKSPACE_BYTES // (8 * group * num_tiles * Q)))
    nearer, older = torch.empty(2, key_rows * group, num_tiles, Q, device=q.device, dtype=torch.float32)
    options = dict(GROUP=group, CURRENT=int(attend_current), LIMITS=first_key is not None)
    keys = rows_descriptor(k, block_n), rows_descriptor(v, block_n)
    queries = rows_descriptor(q, plan.dkdv.block_m), rows_descriptor(do, plan.dkdv.block_m)
    for first in range(0, B * key_heads, key_rows):
        count = min(key_rows, B * key_heads - first)
        sizes = (scale * LOG2E, scale, Q, T, H, grains, num_tiles, first * group)
        launch(
            dq_kernel, (ceil_div(Q, plan.dq.block_m), count * group),
            keys, (q, do, first_key, remainder, dremainder, spent, oldest, dq, nearer, older), sizes,
            **options, **plan.dq.options(q),
        )  # fmt: skip
        launch(
            dkdv_kernel, (num_tiles, count), (*queries, *keys), (first_key, oldest, nearer, older, dk, dv), sizes,
            **options, **plan.dkdv.options(q),
        )  # fmt: skip
    return dq, dk, dv
