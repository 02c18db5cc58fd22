"""Backward pass for Hopper GPUs in Gluon: five matrix products per tile, copies by a warp of their own.

One program owns a tile of keys. A producer warp streams tiles of Q and dO; two warpgroups hold dK and dV in registers,
with everything transposed (keys down, queries across), so that P and dS feed the next products straight from registers.
Only dS also goes through shared memory, for dQ, which is added up in a float32 buffer laid out in the order of the
registers: one 16-byte reduction per four numbers, neighbours side by side.

Row sums of dS are 0 only up to the rounding of O, and must be kept per row (see `triton_backward`). They are taken of dS
as it lies in shared memory for dQ, while the last products run; the column sums are of the same rounded numbers, so that
what does not span a gate cancels exactly.

Legend: M queries of a step, N keys of the tile, D head dimension.

Nothing can leave float32's range, for the reasons given in `triton_backward`.
"""

# ruff: noqa: RUF005, SIM113 -- Gluon compiles this: it knows neither unpacking in lists nor enumerate

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.forgetting_attention.hopper_copy import place, rows_descriptor, tile_descriptor
from kernels.forgetting_attention.launch import ceil_div, launch
from kernels.forgetting_attention.triton_backward import gate_gradient_of_head, tile_spans
from kernels.forgetting_attention.triton_prepare import LOG2E, Prepared
from kernels.forgetting_attention.visibility import TILE

BLOCK_N = 128
BLOCK_M = 64  # 128 spills registers
STAGES = {64: 3, 128: 2}
KV_REGISTERS = {64: True, 128: False}  # K and V as register operands: shared memory is as busy as the tensor cores
AHEAD = {64: True, 128: False}  # S of the next step under the sums of dQ; at 128 registers spill
PRODUCER_REGISTERS = 24
LEAST_DECAY = 8.0  # in powers of two over BLOCK_M tokens: from here on the gates' gradient is corrected near the diagonal
_TILE = gl.constexpr(TILE)
_TILE_TL = tl.constexpr(TILE)
_TILES_AT_ONCE = tl.constexpr(32)
_STATS = gl.constexpr(4)  # numbers of a query that come with it: lse, delta, the bits of its first key, and one for nothing
_STATS_TL = tl.constexpr(4)


def _reductions(registers: int) -> str:
    """All of a thread's registers of dQ, four in one reduction, each 256 threads of 16 bytes behind the one before. Of the
    addresses only the first is used: the others would be kept in registers, two each."""
    values = [", ".join(f"${2 * registers + i + j}" for j in range(4)) for i in range(0, registers, 4)]
    adds = [f"red.relaxed.gpu.global.add.v4.f32 [${registers} + {4096 * i}], {{{four}}};" for i, four in enumerate(values)]
    return "\n".join(["{", *adds, *(f"mov.b32 ${i}, 0;" for i in range(registers)), "}"])


_ADD16, _ADD32 = gl.constexpr(_reductions(16)), gl.constexpr(_reductions(32))
_OF16, _OF32 = (gl.constexpr(",".join(["=r"] * n + ["l"] * n + ["f"] * n)) for n in (16, 32))

# Two numbers rounded to 16 bits, and what they have become in float32: one conversion for both.
_ROUND_BF16 = gl.constexpr("cvt.rn.bf16x2.f32 $0, $4, $3; shl.b32 $1, $0, 16; and.b32 $2, $0, 0xffff0000;")
_ROUND_FP16 = gl.constexpr("""
{
.reg .b16 l, h;
cvt.rn.f16x2.f32 $0, $4, $3; mov.b32 {l, h}, $0; cvt.f32.f16 $1, l; cvt.f32.f16 $2, h;
}
""")


@gluon.jit
def _stop(stop_ptr, Q, BLOCK_M: gl.constexpr):
    """The end of the queries that see a key tile, in whole steps."""
    return gl.minimum(gl.load(stop_ptr) * _TILE, (Q + BLOCK_M - 1) // BLOCK_M * BLOCK_M)


@gluon.jit
def _produce(
    q_desc, k_desc, v_desc, do_desc, stat_desc, q_smem, k_smem, v_smem, do_smem, stat_smem, kv_full, full, empty,
    stop_ptr, batch, head, stat_row, n, first, Q, BLOCK_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """K and V once, then Q and dO of every step, as soon as a stage is free."""
    mbarrier.expect(kv_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(k_desc, [batch, n, head, 0], kv_full, k_smem)
    tma.async_copy_global_to_shared(v_desc, [batch, n, head, 0], kv_full, v_smem)
    stop = _stop(stop_ptr, Q, BLOCK_M)  # behind these copies: a program's first load takes as long as they do
    step = 0
    for m in range(first, stop, BLOCK_M):
        stage = step % STAGES
        mbarrier.wait(empty.index(stage), (step // STAGES + 1) & 1)
        barrier = full.index(stage)
        mbarrier.expect(barrier, q_desc.block_type.nbytes + do_desc.block_type.nbytes + stat_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [batch, m, head, 0], barrier, q_smem.index(stage))
        tma.async_copy_global_to_shared(do_desc, [batch, m, head, 0], barrier, do_smem.index(stage))
        tma.async_copy_global_to_shared(stat_desc, [stat_row + m // BLOCK_M, 0], barrier, stat_smem.index(stage))
        step += 1


@gluon.jit
def _first_cum(local_ptr, base_ptr, m, Q, T):
    """c of the first query of m's tile: what `lse` is relative to."""
    query = gl.minimum(m, Q - 1) // _TILE * _TILE + (T - Q)
    return gl.load(base_ptr + query // _TILE) + gl.load(local_ptr + query)


@gluon.jit
def _sums(x_NM, LANES: gl.constexpr):
    """The rows' sums, (N, 1), or with LANES what each thread has of them, (N, 8): to add the lanes up takes longer."""
    return gl.sum(x_NM.reshape((x_NM.shape[0], x_NM.shape[1] // 8, 8)), 1) if LANES else gl.sum(x_NM, 1)[:, None]


@gluon.jit
def _consume(
    q_smem, k_smem, v_smem, do_smem, ds_smem, stat_smem, kv_full, full, empty,
    dq_ptr, rowsum_ptr, dk_ptr, dv_ptr, column_ptr, local_ptr, base_ptr, even_ptr, stop_ptr,
    batch, head, n, first, whole, scale2, scale, Q, T, H,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, KV_REGISTERS: gl.constexpr,
    AHEAD: gl.constexpr,
):  # fmt: skip
    """The five products and the softmax between them.

    AHEAD: S of a step is begun in the step before, behind dQ and dK, and is there when the step begins: a product that is
    still under way from one step to the next makes ptxas wait after each.
    """
    WARPS_N: gl.constexpr = 8 * 16 // BLOCK_M  # both warpgroups have all queries of a step, and half of D
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_M, 16])
    kv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, D, 16])
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8 // WARPS_N, WARPS_N], [16, D // WARPS_N, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, kv_layout, 2)
    key_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    query_layout: gl.constexpr = gl.SliceLayout(0, s_layout)
    # Row sums of dS: a warp takes 8 queries and all keys of the step, 8 keys at once without bank conflicts.
    by_query: gl.constexpr = gl.BlockedLayout([1, 2], [8, 4], [1, BLOCK_M // 8], [1, 0])
    dtype: gl.constexpr = q_smem.dtype
    ROUND: gl.constexpr = _ROUND_BF16 if dtype == gl.bfloat16 else _ROUND_FP16
    ADD: gl.constexpr = _ADD16 if D == 64 else _ADD32
    OF: gl.constexpr = _OF16 if D == 64 else _OF32

    # Where a register of dQ goes: registers of one thread four by four, threads side by side.
    r = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, dq_layout))[:, None]
    c = gl.arange(0, D, layout=gl.SliceLayout(0, dq_layout))[None, :]
    WIDTH: gl.constexpr = D // WARPS_N
    warp = c // WIDTH * (8 // WARPS_N) + r // 16
    thread = warp * 32 + r % 8 * 4 + c % 8 // 2
    dq_offset = ((c % WIDTH // 8 * 256 + thread) * 4 + r % 16 // 8 * 2 + c % 2) * 4  # bytes

    keys_N = n + gl.arange(0, BLOCK_N, layout=key_layout)
    local_N = gl.load(local_ptr + keys_N, mask=keys_N < T, other=0.0)
    base = gl.load(base_ptr + n // _TILE)
    partial = gl.load(even_ptr) * _TILE
    stop = _stop(stop_ptr, Q, BLOCK_M)
    dk_ND = gl.zeros((BLOCK_N, D), gl.float32, layout=kv_layout)
    dv_ND = gl.zeros((BLOCK_N, D), gl.float32, layout=kv_layout)
    no_s = gl.zeros((BLOCK_N, BLOCK_M), gl.float32, layout=s_layout)
    column_NL = _sums(no_s, D == 64)  # at 128 registers spill
    no_dq = gl.zeros((BLOCK_M, D), gl.float32, layout=dq_layout)
    k_ND = k_smem.reshape((BLOCK_N, D))
    v_ND = v_smem.reshape((BLOCK_N, D))
    mbarrier.wait(kv_full, 0)
    if KV_REGISTERS:
        s_a_layout: gl.constexpr = gl.DotOperandLayout(0, s_layout, 2)
        k_a = k_ND.load(s_a_layout)
        v_a = v_ND.load(s_a_layout)
    else:
        k_a = k_ND
        v_a = v_ND
    step = 0
    ref = _first_cum(local_ptr, base_ptr, first, Q, T)
    if AHEAD:
        mbarrier.wait(full.index(0), 0, pred=first < stop)
        first_q_MD = q_smem.index(0).reshape((BLOCK_M, D))
        s_NM = warpgroup_mma_wait(0, deps=[warpgroup_mma(k_a, first_q_MD.permute((1, 0)), no_s, use_acc=False, is_async=True)])
    for m in range(first, stop, BLOCK_M):
        stage = step % STAGES
        q_MD = q_smem.index(stage).reshape((BLOCK_M, D))
        do_MD = do_smem.index(stage).reshape((BLOCK_M, D))
        stat_1M = stat_smem.index(stage)
        shift_N = (ref - base).to(gl.float32) - local_N
        if not AHEAD:
            mbarrier.wait(full.index(stage), step // STAGES & 1)
            lse_1M = stat_1M.slice(0, BLOCK_M, dim=1).load(s_layout)  # behind the products it would come after them
            s_NM = warpgroup_mma(k_a, q_MD.permute((1, 0)), no_s, use_acc=False, is_async=True)
        dp_NM = warpgroup_mma(v_a, do_MD.permute((1, 0)), no_s, use_acc=False, is_async=True)
        ref = _first_cum(local_ptr, base_ptr, m + BLOCK_M, Q, T)  # of the next step: the load takes a while
        if AHEAD:  # there one in front of the products would hold them up
            lse_1M = stat_1M.slice(0, BLOCK_M, dim=1).load(s_layout)
        else:
            s_NM = warpgroup_mma_wait(1, deps=[s_NM])
        # The decays first: both are large beside the diagonal and all but cancel. lse has seen every key: p <= 1.
        p_NM = gl.exp2(s_NM * scale2 + (shift_N[:, None] - lse_1M))
        if (m < whole) | (m + BLOCK_M > partial):
            position_M = m + gl.arange(0, BLOCK_M, layout=query_layout) + (T - Q)
            first_1M = stat_1M.slice(2 * BLOCK_M, BLOCK_M, dim=1).load(s_layout).to(gl.int32, bitcast=True)
            seen_NM = (keys_N[:, None] <= position_M[None, :]) & (keys_N[:, None] >= first_1M)
            p_NM = gl.where(seen_NM, p_NM, 0.0)
        p_a = gl.convert_layout(p_NM.to(dtype), a_layout)
        if AHEAD:  # behind the wait they would come after it; at 128 registers spill
            delta_1M = stat_1M.slice(BLOCK_M, BLOCK_M, dim=1).load(s_layout)
        dv_ND = warpgroup_mma(p_a, do_MD, dv_ND, is_async=True)
        dp_NM = warpgroup_mma_wait(1, deps=[dp_NM])
        if not AHEAD:
            delta_1M = stat_1M.slice(BLOCK_M, BLOCK_M, dim=1).load(s_layout)
        ds_NM = p_NM * (dp_NM - delta_1M)
        ds_low, ds_NM = gl.inline_asm_elementwise(ROUND, "=r,=f,=f,f,f", [ds_NM], (gl.int16, gl.float32), is_pure=True, pack=2)
        ds_low = ds_low.to(dtype, bitcast=True)
        ds_smem.store(ds_low)
        fence_async_shared()
        ds_a = gl.convert_layout(ds_low, a_layout)
        dq_MD = warpgroup_mma(ds_smem.permute((1, 0)), k_ND, no_dq, use_acc=False, is_async=True)
        dk_ND = warpgroup_mma(ds_a, q_MD, dk_ND, is_async=True)
        if AHEAD:  # behind the last step it is of whatever lies there, for nothing
            following = (step + 1) % STAGES
            mbarrier.wait(full.index(following), (step + 1) // STAGES & 1, pred=m + BLOCK_M < stop)
            next_q_MD = q_smem.index(following).reshape((BLOCK_M, D))
            s_NM = warpgroup_mma(k_a, next_q_MD.permute((1, 0)), no_s, use_acc=False, is_async=True)
        column_NL += _sums(ds_NM, D == 64)
        dq_MD, dv_ND = warpgroup_mma_wait(2 if AHEAD else 1, deps=[dq_MD, dv_ND])
        target = (dq_ptr + m // BLOCK_M * (BLOCK_M * D)).to(gl.int64, bitcast=True) + dq_offset
        gl.inline_asm_elementwise(ADD, OF, [target, dq_MD], dtype=gl.int32, is_pure=False, pack=D // 4)
        sum_M = gl.sum(ds_smem.load(by_query).to(gl.float32), 0)
        gl.atomic_add(rowsum_ptr + (m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, by_query))), sum_M, sem="relaxed")
        if AHEAD:
            dk_ND, s_NM = warpgroup_mma_wait(0, deps=[dk_ND, s_NM])
        else:
            dk_ND = warpgroup_mma_wait(0, deps=[dk_ND])
        mbarrier.arrive(empty.index(stage), count=1)
        step += 1

    gl.store(column_ptr + keys_N, gl.convert_layout(gl.sum(column_NL, 1), key_layout), mask=keys_N < T)
    store_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [8, 1], [1, 0])
    rows_N = n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, store_layout))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, store_layout))
    out = ((batch.to(gl.int64) * T + rows_N) * H + head)[:, None] * D + d[None, :]
    inside = (rows_N < T)[:, None]
    gl.store(dk_ptr + out, gl.convert_layout((dk_ND * scale).to(dtype), store_layout), mask=inside)
    gl.store(dv_ptr + out, gl.convert_layout(dv_ND.to(dtype), store_layout), mask=inside)


@gluon.jit(do_not_specialize=["Q", "T", "H", "num_tiles", "query_steps"])
def _backward_kernel(
    q_desc, k_desc, v_desc, do_desc, stat_desc, scratch_ptr, dk_ptr, dv_ptr,
    local_ptr, base_ptr, even_ptr, scale2, scale, Q, T, H, num_tiles, query_steps,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    KV_REGISTERS: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    tile, batch_head = place(gl.program_id(0), num_tiles, gl.num_programs(0) // num_tiles)
    n = tile * BLOCK_N  # early keys have the most queries: first
    row = batch_head.to(gl.int64)
    steps = gl.num_programs(0).to(gl.int64) // num_tiles * query_steps  # of all heads: see `hopper_backward`
    dq_ptr = scratch_ptr + steps * (_STATS * BLOCK_M)
    rowsum_ptr = dq_ptr + steps * (BLOCK_M * D)
    column_ptr = rowsum_ptr + steps * BLOCK_M
    even_ptr += row * num_tiles + n // _TILE
    stop_ptr = even_ptr + gl.num_programs(0)
    batch, head = batch_head // H, batch_head % H
    offset = T - Q
    first = gl.maximum(n - offset, 0) // BLOCK_M * BLOCK_M
    whole = (gl.maximum(n + BLOCK_N - 1 - offset, 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M

    q_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + q_desc.block_type.shape, q_desc.layout)
    do_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + do_desc.block_type.shape, do_desc.layout)
    k_smem = gl.allocate_shared_memory(q_desc.dtype, k_desc.block_type.shape, k_desc.layout)
    v_smem = gl.allocate_shared_memory(q_desc.dtype, v_desc.block_type.shape, v_desc.layout)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    ds_smem = gl.allocate_shared_memory(q_desc.dtype, [BLOCK_N, BLOCK_M], ds_layout)
    stat_smem = gl.allocate_shared_memory(gl.float32, [STAGES] + stat_desc.block_type.shape, stat_desc.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    q_smem, k_smem, v_smem, do_smem, ds_smem, stat_smem, kv_full, full, empty,
                    dq_ptr + row * query_steps * (BLOCK_M * D), rowsum_ptr + row * query_steps * BLOCK_M, dk_ptr, dv_ptr,
                    column_ptr + row * T, local_ptr + row * num_tiles * _TILE, base_ptr + row * (num_tiles + 1),
                    even_ptr, stop_ptr,
                    batch, head, n, first, whole, scale2, scale, Q, T, H, BLOCK_M, BLOCK_N, D, STAGES,
                    KV_REGISTERS, AHEAD,
                ),
            ),
            (
                _produce,
                (
                    q_desc, k_desc, v_desc, do_desc, stat_desc, q_smem, k_smem, v_smem, do_smem, stat_smem,
                    kv_full, full, empty, stop_ptr, batch, head, batch_head * query_steps, n, first, Q, BLOCK_M, STAGES,
                ),
            ),
        ],
        [1],
        [REGISTERS],
    )  # fmt: skip


@triton.jit
def _lost_near_diagonal(
    q_ptr, k_ptr, v_ptr, local_ptr, base_ptr, do_MD, lse_M, delta_M, first_key_M, rows_M, q_t, k_t, v_t, scale2, Q, T,
    D: tl.constexpr,
):  # fmt: skip
    """What rounding will take from the sums of dS, among the tokens of these rows: from a row's sum less from its column's, as
    only their difference counts. Where gates are local, next to all of the weight is here."""
    d = tl.arange(0, D)[None, :]
    inside_M = rows_M < Q
    token_M = rows_M + (T - Q)
    q_MD = tl.load(q_ptr + rows_M.to(tl.int64)[:, None] * q_t + d, mask=inside_M[:, None], other=0.0)
    k_MD = tl.load(k_ptr + token_M.to(tl.int64)[:, None] * k_t + d, mask=inside_M[:, None], other=0.0)
    v_MD = tl.load(v_ptr + token_M.to(tl.int64)[:, None] * v_t + d, mask=inside_M[:, None], other=0.0)
    first = tl.min(rows_M, 0) // _TILE_TL * _TILE_TL + (T - Q)
    ref = tl.load(base_ptr + first // _TILE_TL) + tl.load(local_ptr + first)  # what lse is relative to
    base_M = tl.load(base_ptr + token_M // _TILE_TL, mask=inside_M, other=0.0)
    shift_M = (ref - base_M).to(tl.float32) - tl.load(local_ptr + token_M, mask=inside_M, other=0.0)
    p_MM = tl.exp2(tl.dot(q_MD, tl.trans(k_MD)) * scale2 + (shift_M[None, :] - lse_M[:, None]))
    seen_MM = (token_M[None, :] <= token_M[:, None]) & (token_M[None, :] >= first_key_M[:, None])
    ds_MM = tl.where(seen_MM, p_MM * (tl.dot(do_MD, tl.trans(v_MD)) - delta_M[:, None]), 0.0)
    lost_MM = ds_MM - ds_MM.to(q_ptr.dtype.element_ty).to(tl.float32)
    return tl.sum(lost_MM, 1) - tl.sum(lost_MM, 0)


@triton.jit(do_not_specialize=["Q", "T", "H", "query_steps", "num_tiles", "query_tiles"])
def _before_kernel(
    o_ptr, do_ptr, lse_ptr, stat_ptr, start_ptr, first_key_ptr, even_ptr, q_ptr, k_ptr, v_ptr, local_ptr, base_ptr,
    do_b, do_q, do_h, do_d, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    scale2, Q, T, H, query_steps, num_tiles, query_tiles,
    BLOCK_M: tl.constexpr, D: tl.constexpr, STEPS: tl.constexpr, LEAST_DECAY: tl.constexpr,
):  # fmt: skip
    """Per step of queries: lse, delta and the first key of its rows (+inf, 0 and T past the end), zeros where dQ will be added,
    and where row sums will, what rounding takes from them. The spans of all key tiles among the programs of a head.

    Where the gates let more than 2^-LEAST_DECAY through to the last of the step's tokens, the rest of a row weighs as much as
    these, and what rounding takes here could not be seen."""
    step, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
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
    steps = tl.num_programs(1).to(tl.int64) * query_steps
    buffer_ptr = stat_ptr + steps * (_STATS_TL * BLOCK_M)
    rowsum_ptr = buffer_ptr + steps * (BLOCK_M * D)
    stop_ptr = even_ptr + tl.num_programs(1) * num_tiles
    first_key_M = tl.load(first_key_ptr + row * Q + rows_M, mask=rows_M < Q, other=T)
    stat_ptr += at * (_STATS_TL * BLOCK_M) + m
    tl.store(stat_ptr, lse_M)
    tl.store(stat_ptr + BLOCK_M, delta_M)
    tl.store(stat_ptr + 2 * BLOCK_M, first_key_M.to(tl.float32, bitcast=True))
    tl.store(buffer_ptr + at * (BLOCK_M * D) + tl.arange(0, BLOCK_M * D), tl.zeros((BLOCK_M * D,), tl.float32))
    local_ptr += row * (num_tiles * _TILE_TL)
    base_ptr += row * (num_tiles + 1)
    token = step * BLOCK_M + (T - Q)
    last = tl.minimum(token + BLOCK_M, T) - 1
    decay = tl.load(base_ptr + token // _TILE_TL) + tl.load(local_ptr + token)
    decay -= tl.load(base_ptr + last // _TILE_TL) + tl.load(local_ptr + last)
    sums_M = tl.zeros((BLOCK_M,), tl.float32)
    if (decay < LEAST_DECAY) == 0:  # also where -inf gates make it NaN
        sums_M = _lost_near_diagonal(
            q_ptr + batch * q_b + head * q_h, k_ptr + batch * k_b + head * k_h, v_ptr + batch * v_b + head * v_h,
            local_ptr, base_ptr, do_MD, lse_M, delta_M, first_key_M, rows_M, q_t, k_t, v_t, scale2, Q, T, D,
        )  # fmt: skip
    tl.store(rowsum_ptr + at * BLOCK_M + m, sums_M)
    for part in range(step, tl.cdiv(num_tiles, _TILES_AT_ONCE), query_steps):
        n = part * _TILES_AT_ONCE + tl.arange(0, _TILES_AT_ONCE)
        tile_spans(start_ptr, first_key_ptr, even_ptr, stop_ptr, row, n, Q, num_tiles, query_tiles, STEPS)


@triton.jit(do_not_specialize=["Q", "T", "H", "query_steps"])
def _after_kernel(
    scratch_ptr, dq_ptr, dgate_ptr, scale, Q, T, H, query_steps,
    BLOCK_M: tl.constexpr, D: tl.constexpr, WARPS_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gates' gradient by the first program of a head; by the others dQ, from the order of the registers to (B, Q, H, D),
    scaled and rounded."""
    step, row = tl.program_id(0) - 1, tl.program_id(1).to(tl.int64)
    steps = tl.num_programs(1).to(tl.int64) * query_steps
    buffer_ptr = scratch_ptr + steps * (_STATS_TL * BLOCK_M)
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


def hopper_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, prepared: Prepared, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv in the inputs' dtype and d log_fgate (B, T, H) float32, all contiguous. k, v have q's heads."""
    B, Q, H, D = q.shape
    T = k.shape[1]
    N, M, steps = prepared.base.shape[-1] - 1, prepared.start.shape[-1], ceil_div(Q, BLOCK_M)
    device = q.device
    # (B, H, steps, .): _STATS M of what comes with queries, M D of dQ's sums, M of dS's row sums; (B, H, T): dS's column sums.
    # In one tensor, and so are the two ends of the spans, as in short calls allocating takes longer than the kernels.
    stats = _STATS.value * BLOCK_M
    scratch = torch.empty(B * H * (steps * (stats + BLOCK_M * (D + 1)) + T), device=device, dtype=torch.float32)
    spans = torch.empty(2, B, H, N, device=device, dtype=torch.int32)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    dgate = torch.empty(B, T, H, device=device, dtype=torch.float32)
    launch(
        _before_kernel, (steps, B * H),
        (), (o, do, lse, scratch, prepared.start, prepared.first_key, spans, q, k, v, prepared.local, prepared.base),
        (*do.stride(), *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], scale * LOG2E, Q, T, H, steps, N, M),
        BLOCK_M=BLOCK_M, D=D, STEPS=M.bit_length(), LEAST_DECAY=LEAST_DECAY,
    )  # fmt: skip
    launch(
        _backward_kernel, (N * B * H,),
        (
            tile_descriptor(q, BLOCK_M), tile_descriptor(k, BLOCK_N), tile_descriptor(v, BLOCK_N),
            tile_descriptor(do, BLOCK_M), rows_descriptor(scratch, B * H * steps, stats, stats),
        ),
        (scratch, dk, dv, prepared.local, prepared.base, spans),
        (scale * LOG2E, scale, Q, T, H, N, steps),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, D=D, STAGES=STAGES[D], REGISTERS=PRODUCER_REGISTERS,
        KV_REGISTERS=KV_REGISTERS[D], AHEAD=AHEAD[D], num_warps=8,
    )  # fmt: skip
    launch(
        _after_kernel, (steps + 1, B * H), (), (scratch, dq, dgate), (scale, Q, T, H, steps),
        BLOCK_M=BLOCK_M, D=D, WARPS_N=8 * 16 // BLOCK_M, BLOCK=1024, num_warps=8,
    )  # fmt: skip
    return dq, dk, dv, dgate
