"""Forward kernel: one program per query tile loops over blocks of keys, as in FlashAttention, and adds the decay of each key.

A constant per row cancels in the softmax, so instead of D_ij = c_i - c_j a tile adds ref - c_j, one number per key, with ref
the `c` of the tile's first query; `lse`, in base 2, is relative to that ref too. For float32 inputs D_ij is computed in float64
for each element (EXACT). Weights are always relative to the row's running maximum (online softmax), so none exceeds 1, and
sums of weighted values stay below the number of keys times the largest value.

Legend: M queries of the tile, N keys of a step, D head dimension."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention_shared.launch import ceil_div, launch
from ...attention_shared.tiles import Tiles
from ..visibility import TILE
from .prepare import LOG2E, Prepared

_TILE = tl.constexpr(TILE)
MARKS = 16  # marks per program: one program per mark would take 2% of a forward pass to find nothing to do


@triton.jit
def tile_logits(
    s_MN, local_ptr, base_ptr, keys_N, first_of_step, ref, cum_M, scale2, T, EDGE: tl.constexpr, EXACT: tl.constexpr
):
    """Compute base-2 logits from raw products: scale * q k + decay, relative to `ref` (EXACT: the true decay, from `cum_M`)."""
    base = tl.load(base_ptr + first_of_step // _TILE)
    if EDGE:
        local_N = tl.load(local_ptr + keys_N, mask=keys_N < T, other=0.0)
    else:
        local_N = tl.load(local_ptr + keys_N)
    if EXACT:
        decay_MN = (cum_M[:, None] - (base + local_N)[None, :]).to(tl.float32)
    else:
        decay_MN = ((ref - base).to(tl.float32) - local_N)[None, :]
    return s_MN * scale2 + decay_MN


@triton.jit
def query_block(
    m, row, local_ptr, base_ptr, first_key_ptr, start_ptr, Q, T, query_tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Return a block's rows, their positions and first keys, the reference and (EXACT) their own `c`, and where its keys
    begin: after a skipped prefix those that some rows see, then those that all rows see, then the diagonal up to the end."""
    rows_M = m * BLOCK_M + tl.arange(0, BLOCK_M)
    offset = T - Q
    position_M = rows_M + offset
    query = m * BLOCK_M + offset
    first_M = tl.load(first_key_ptr + row * Q + rows_M, mask=rows_M < Q, other=T)
    last_row = tl.minimum(m * BLOCK_M + BLOCK_M, Q) - 1
    tile_query = m * BLOCK_M // _TILE * _TILE + offset
    ref = tl.load(base_ptr + tile_query // _TILE) + tl.load(local_ptr + tile_query)
    cum_M = tl.zeros((BLOCK_M,), tl.float64)
    if EXACT:
        cum_M = tl.load(base_ptr + position_M // _TILE, mask=rows_M < Q, other=0.0)
        cum_M += tl.load(local_ptr + position_M, mask=rows_M < Q, other=0.0)
    start = tl.load(start_ptr + row * query_tiles + m * BLOCK_M // _TILE) * _TILE
    diagonal = tl.maximum(query // BLOCK_N * BLOCK_N, start)
    uneven = tl.load(first_key_ptr + row * Q + last_row)
    uneven = tl.minimum(tl.maximum((uneven + BLOCK_N - 1) // BLOCK_N * BLOCK_N, start), diagonal)
    return rows_M, position_M, first_M, ref, cum_M, start, uneven, diagonal, last_row + offset + 1


@triton.jit
def _walk(
    acc_MD, total_M, top_M, q_MD, k_desc, v_desc, local_ptr, base_ptr, batch, key_head, position_M, first_M, ref, cum_M,
    start, stop, scale2, T, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    EDGE: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Loop over keys start..stop with an online softmax. EDGE: some pairs are masked."""
    for n in tl.range(start, stop, BLOCK_N):
        n = tl.multiple_of(n, BLOCK_N)
        keys_N = n + tl.arange(0, BLOCK_N)
        k_ND = k_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
        s_MN = tl.dot(q_MD, k_ND.T, input_precision=PRECISION)
        x_MN = tile_logits(s_MN, local_ptr, base_ptr, keys_N, n, ref, cum_M, scale2, T, EDGE, EXACT)
        if EDGE:
            seen_MN = (keys_N[None, :] <= position_M[:, None]) & (keys_N[None, :] >= first_M[:, None])
            x_MN = tl.where(seen_MN, x_MN, float("-inf"))
        new_top_M = tl.maximum(top_M, tl.max(x_MN, 1))
        if EDGE:
            finite_M = tl.where(new_top_M == float("-inf"), 0.0, new_top_M)  # no visible key yet
        else:
            finite_M = new_top_M
        p_MN = tl.exp2(x_MN - finite_M[:, None])
        shrink_M = tl.exp2(top_M - finite_M)
        total_M = total_M * shrink_M + tl.sum(p_MN, 1)
        acc_MD = acc_MD * shrink_M[:, None]
        top_M = new_top_M
        v_ND = v_desc.load([batch, n, key_head, 0]).reshape(BLOCK_N, D)
        acc_MD = tl.dot(p_MN.to(v_ND.dtype), v_ND, acc_MD, input_precision=PRECISION)
    return acc_MD, total_M, top_M


@triton.jit(do_not_specialize=["Q", "T", "H", "num_tiles", "query_tiles"])
def forward_kernel(
    q_desc, k_desc, v_desc, o_ptr, lse_ptr, local_ptr, base_ptr, first_key_ptr, start_ptr, redo_ptr,
    scale2, Q, T, H, num_tiles, query_tiles,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    EXACT: tl.constexpr, PRECISION: tl.constexpr, REDO: tl.constexpr,
):  # fmt: skip
    """Compute one block of queries per program. REDO: check so many blocks per program and recompute the few marked ones."""
    if REDO:
        marks_ptr = redo_ptr + tl.program_id(1).to(tl.int64) * query_tiles * _TILE // BLOCK_M
        first = tl.program_id(0) * REDO
        for m in range(first, tl.minimum(first + REDO, tl.cdiv(Q, BLOCK_M))):
            if tl.load(marks_ptr + m) != 0:
                _forward_block(
                    m, q_desc, k_desc, v_desc, o_ptr, lse_ptr, local_ptr, base_ptr, first_key_ptr, start_ptr,
                    scale2, Q, T, H, num_tiles, query_tiles, GROUP, BLOCK_M, BLOCK_N, D, EXACT, PRECISION,
                )  # fmt: skip
    else:
        # Late blocks have the most keys: start them first.
        _forward_block(
            tl.num_programs(0) - 1 - tl.program_id(0),
            q_desc, k_desc, v_desc, o_ptr, lse_ptr, local_ptr, base_ptr, first_key_ptr, start_ptr,
            scale2, Q, T, H, num_tiles, query_tiles, GROUP, BLOCK_M, BLOCK_N, D, EXACT, PRECISION,
        )  # fmt: skip


@triton.jit
def _forward_block(
    m, q_desc, k_desc, v_desc, o_ptr, lse_ptr, local_ptr, base_ptr, first_key_ptr, start_ptr,
    scale2, Q, T, H, num_tiles, query_tiles,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
    EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    batch, head = (row // H).to(tl.int32), (row % H).to(tl.int32)
    key_head = head // GROUP
    local_ptr += row * num_tiles * _TILE
    base_ptr += row * (num_tiles + 1)

    rows_M, position_M, first_M, ref, cum_M, start, uneven, diagonal, end = query_block(
        m, row, local_ptr, base_ptr, first_key_ptr, start_ptr, Q, T, query_tiles, BLOCK_M, BLOCK_N, EXACT
    )
    q_MD = q_desc.load([batch, m * BLOCK_M, head, 0]).reshape(BLOCK_M, D)
    acc_MD = tl.zeros((BLOCK_M, D), tl.float32)
    total_M = tl.zeros((BLOCK_M,), tl.float32)
    top_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    for part in tl.static_range(3):
        first = start if part == 0 else (uneven if part == 1 else diagonal)
        stop = uneven if part == 0 else (diagonal if part == 1 else end)
        acc_MD, total_M, top_M = _walk(
            acc_MD, total_M, top_M, q_MD, k_desc, v_desc, local_ptr, base_ptr, batch, key_head, position_M, first_M, ref, cum_M,
            first, stop, scale2, T, BLOCK_M, BLOCK_N, D, part != 1, EXACT, PRECISION,
        )  # fmt: skip

    empty_M = total_M == 0.0  # a padded query: output 0, and +inf makes its probabilities 0 in the backward kernels
    o_MD = acc_MD / tl.where(empty_M, 1.0, total_M)[:, None]
    lse_M = tl.where(empty_M, float("inf"), top_M + tl.log2(total_M))
    out = ((batch.to(tl.int64) * Q + rows_M) * H + head)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(o_ptr + out, o_MD.to(o_ptr.dtype.element_ty), mask=(rows_M < Q)[:, None])
    tl.store(lse_ptr + row * Q + rows_M, lse_M, mask=rows_M < Q)


def forward(
    q: Tensor, k: Tensor, v: Tensor, prepared: Prepared, scale: float, tiles: Tiles,
    redo: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output (B, Q, H, D) and `lse` (B, H, Q) float32, base 2, relative to each query tile's ref.

    `redo` = (o, lse, marks) recomputes only the marked blocks of `tiles.block_m` queries; marks are (B, H, blocks) int32."""
    B, Q, H, _ = q.shape
    T, key_heads = k.shape[1:3]
    o, lse, marks = redo or (q.new_empty(q.shape), torch.empty(B, H, Q, device=q.device, dtype=torch.float32), None)
    launch(
        forward_kernel, (ceil_div(ceil_div(Q, tiles.block_m), MARKS if redo else 1), B * H), tiles.described(q, k, v),
        (o, lse, *prepared[:4], marks), (scale * LOG2E, Q, T, H, prepared.base.shape[-1] - 1, prepared.start.shape[-1]),
        GROUP=H // key_heads, REDO=MARKS if redo else 0, **tiles.options(q),
    )  # fmt: skip
    return o, lse
