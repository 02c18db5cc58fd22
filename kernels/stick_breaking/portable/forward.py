"""Forward kernel: one program per query tile loops over its keys from the nearest to the farthest.

In base 2: log beta = min(x, 0) - log2(1 + 2^-|x|) and `spent` = -log2(1 - beta) = max(x, 0) + log2(1 + 2^-|x|). The sum of
`spent` over the nearer keys of a tile is a product with a triangular matrix: for 16-bit inputs in float16, whose 11 bits, for a
sum s, change the weight 2^-s by less than 2^-13 of the stick. The sum over nearer tiles is carried per row: each tile's total
in float32, their sum in float64. A key spends at most `CAP` bits, so that sums stay small: 2^-CAP of a stick is negligible.

After the diagonal come stretches of 1, 2, 4 ... tiles (within a stretch the loop is pipelined), between which the program exits
if every row's stick is used up; `oldest` tells the backward kernels where.

Legend: M queries of the tile, N keys of a step, D head dimension."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention_shared.launch import ceil_div, launch
from ...attention_shared.tiles import Tiles
from ..visibility import EXIT_BITS
from .tiles import GRAIN

LOG2E = 1.4426950408889634
_USED_UP = tl.constexpr(EXIT_BITS[torch.float32])
_CAP = tl.constexpr(64.0)
_LONGEST = tl.constexpr(32)
_GRAIN = tl.constexpr(GRAIN)


@triton.jit
def log2_1p(e, EXACT: tl.constexpr):
    """Compute log2(1 + e) for e in [0, 1], relative error 6e-5 (EXACT: 2e-7) even for small e, of which long rows sum many."""
    if EXACT:
        p = 0.00754917692
        p = p * e - 0.0425670474
        p = p * e + 0.112856182
        p = p * e - 0.197118973
        p = p * e + 0.275641422
        p = p * e - 0.358408478
        p = p * e + 0.480692959
        p = p * e - 0.721340208
        p = p * e + 1.442695
    else:
        p = 0.0596515125
        p = p * e - 0.227119427
        p = p * e + 0.441898861
        p = p * e - 0.716987438
        p = p * e + 1.44261321
    return p * e


@triton.jit
def shares(x, EXACT: tl.constexpr):
    """Compute log2 beta and -log2(1 - beta), at most about CAP, of base-2 logits."""
    if EXACT:
        soft = log2_1p(tl.exp2(-tl.abs(x)), EXACT)
        return tl.minimum(x, 0.0) - soft, tl.minimum(tl.maximum(x, 0.0), _CAP) + soft
    x = tl.minimum(x, _CAP)  # the difference below is then within 4e-6
    spent = tl.maximum(x, 0.0) + log2_1p(tl.exp2(-tl.abs(x)), EXACT)
    return x - spent, spent


@triton.jit
def visible(n, limit_M, first_M, BLOCK_N: tl.constexpr):
    """Tell which of the keys from n on each query sees."""
    keys_N = n + tl.arange(0, BLOCK_N)
    return (keys_N[None, :] < limit_M[:, None]) & (keys_N[None, :] >= first_M[:, None])


@triton.jit
def less_nearer(N: tl.constexpr, dtype: tl.constexpr):
    """Return an (N, N) matrix with which x_MN @ matrix is minus the sum over the nearer (later) keys."""
    return tl.where(tl.arange(0, N)[:, None] > tl.arange(0, N)[None, :], -1.0, 0.0).to(dtype)


@triton.jit
def _walk(
    acc_MD, spent_M, q_MD, k_desc, v_desc, batch, key_head, limit_M, first_M, nearer_NN, newest, count, scale2,
    BLOCK_N: tl.constexpr, D: tl.constexpr, EDGE: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Loop backwards over `count` key tiles, from the one that starts at `newest`. EDGE: some pairs are masked."""
    for step in tl.range(0, count):
        n = tl.multiple_of(newest - step * BLOCK_N, BLOCK_N)
        k_ND = k_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
        x_MN = tl.dot(q_MD, k_ND.T, input_precision=PRECISION) * scale2
        log_beta_MN, spent_MN = shares(x_MN, EXACT)
        if EDGE:
            seen_MN = visible(n, limit_M, first_M, BLOCK_N)
            spent_MN = tl.where(seen_MN, spent_MN, 0.0)
        log_a_MN = log_beta_MN - spent_M.to(tl.float32)[:, None]
        log_a_MN = tl.dot(spent_MN.to(nearer_NN.dtype), nearer_NN, log_a_MN, input_precision=PRECISION)
        a_MN = tl.exp2(log_a_MN)
        if EDGE:
            a_MN = tl.where(seen_MN, a_MN, 0.0)
        v_ND = v_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
        acc_MD = tl.dot(a_MN.to(v_ND.dtype), v_ND, acc_MD, input_precision=PRECISION)
        spent_M += tl.sum(spent_MN, 1).to(tl.float64)
    return acc_MD, spent_M


@triton.jit(do_not_specialize=["Q", "T", "H", "grains"])
def forward_kernel(
    q_desc, k_desc, v_desc, first_key_ptr, o_ptr, remainder_ptr, spent_ptr, oldest_ptr, scale2, Q, T, H, grains,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, CURRENT: tl.constexpr,
    LIMITS: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Late query tiles can have the most keys: start them first.
    m = tl.num_programs(0) - 1 - tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    batch, head = (row // H).to(tl.int32), (row % H).to(tl.int32)
    key_head = head // GROUP
    rows_M = m * BLOCK_M + tl.arange(0, BLOCK_M)
    inside_M = rows_M < Q
    limit_M = rows_M + (T - Q) + CURRENT  # the first masked key
    first_M = tl.where(inside_M, 0, T)
    start = 0
    if LIMITS:
        first_key_ptr += batch.to(tl.int64) * Q
        first_M = tl.load(first_key_ptr + rows_M, mask=inside_M, other=T)
        start = tl.load(first_key_ptr + m * BLOCK_M) // BLOCK_N * BLOCK_N
    end = (tl.minimum(m * BLOCK_M + BLOCK_M, Q) - 1 + T - Q + CURRENT + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    whole = tl.maximum((m * BLOCK_M + T - Q + CURRENT) // BLOCK_N * BLOCK_N, start)  # all rows see the keys before it

    q_MD = q_desc.load([batch, m * BLOCK_M, head, 0]).reshape(BLOCK_M, D)
    nearer_NN = less_nearer(BLOCK_N, tl.float32 if EXACT else tl.float16)
    acc_MD = tl.zeros((BLOCK_M, D), tl.float32)
    spent_M = tl.zeros((BLOCK_M,), tl.float64)
    acc_MD, spent_M = _walk(
        acc_MD, spent_M, q_MD, k_desc, v_desc, batch, key_head, limit_M, first_M, nearer_NN,
        end - BLOCK_N, (end - whole) // BLOCK_N, scale2, BLOCK_N, D, True, EXACT, PRECISION,
    )  # fmt: skip
    n = whole
    length = 1
    alive = tl.max(((first_M < n) & (spent_M <= _USED_UP)).to(tl.int32), 0)
    while (n > start) & (alive > 0):
        count = tl.minimum(length, (n - start) // BLOCK_N)
        acc_MD, spent_M = _walk(
            acc_MD, spent_M, q_MD, k_desc, v_desc, batch, key_head, limit_M, first_M, nearer_NN,
            n - BLOCK_N, count, scale2, BLOCK_N, D, LIMITS, EXACT, PRECISION,
        )  # fmt: skip
        n -= count * BLOCK_N
        length = tl.minimum(2 * length, _LONGEST)
        alive = tl.max(((first_M < n) & (spent_M <= _USED_UP)).to(tl.int32), 0)

    grain = m * (BLOCK_M // _GRAIN) + tl.arange(0, BLOCK_M // _GRAIN)
    tl.store(oldest_ptr + row * grains + grain, tl.zeros_like(grain) + n, mask=grain < grains)
    tl.store(spent_ptr + row * Q + rows_M, spent_M, mask=inside_M)
    out_M = (batch.to(tl.int64) * Q + rows_M) * H + head
    tl.store(remainder_ptr + out_M, tl.exp2(-spent_M.to(tl.float32)), mask=inside_M)
    out_MD = out_M[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(o_ptr + out_MD, acc_MD.to(o_ptr.dtype.element_ty), mask=inside_M[:, None])


def forward(
    q: Tensor, k: Tensor, v: Tensor, first_key: Tensor | None, scale: float, attend_current: bool, tiles: Tiles
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output (B, Q, H, D), remainder (B, Q, H) float32, and for the backward pass -log2 of the remainder, float64
    (B, H, Q), and the oldest key that each grain of queries visited, int32 (B, H, ceil(Q / GRAIN))."""
    B, Q, H, D = q.shape
    T, key_heads = k.shape[1:3]
    grains = ceil_div(Q, GRAIN)
    o = torch.empty(B, Q, H, D, device=q.device, dtype=q.dtype)
    remainder = torch.empty(B, Q, H, device=q.device, dtype=torch.float32)
    spent = torch.empty(B, H, Q, device=q.device, dtype=torch.float64)
    oldest = torch.empty(B, H, grains, device=q.device, dtype=torch.int32)
    launch(
        forward_kernel, (ceil_div(Q, tiles.block_m), B * H), tiles.described(q, k, v),
        (first_key, o, remainder, spent, oldest), (scale * LOG2E, Q, T, H, grains),
        GROUP=H // key_heads, CURRENT=int(attend_current), LIMITS=first_key is not None, **tiles.options(q),
    )  # fmt: skip
    return o, remainder, spent, oldest
