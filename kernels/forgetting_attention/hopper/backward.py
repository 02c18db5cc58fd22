"""Backward pass for Hopper GPUs in Gluon: five matrix products per tile, and a producer warp for the TMA copies.

One program owns a key tile. The producer warp streams tiles of Q and dO; two warpgroups hold dK and dV in registers, and if
registers suffice a third computes dQ: see `backward_steps`. Two more warps enforce the order in which dQ is summed: see
`turns`. Nothing overflows float32, for the reasons given in `portable.backward`.

Legend: M queries of a step, N keys of the tile, D head dimension."""

# ruff: noqa: RUF005 -- Gluon, which compiles this, does not support unpacking in lists

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from ...attention_shared.launch import ceil_div, launch
from ..portable.prepare import LOG2E, Prepared
from ..visibility import TILE
from .around import STATS, after_kernel, before_kernel
from .backward_steps import DS_STAGES, fifth_product, five_products, four_products
from .copies import HEADS_AT_ONCE, place, rows_descriptor, tile_descriptor
from .turns import PROGRAMS_SIDE_BY_SIDE, pass_turns, wait_for_turns, walk

BLOCK_N = 128
BLOCK_M = 64  # 128 spills registers
STAGES = {64: 4, 128: 2}
DQ_APART = {64: True, 128: False}  # whether a separate warpgroup computes dQ: at 128 registers would spill
DQ_REGISTERS = 88
PRODUCER_REGISTERS = 24
LEAST_DECAY = 8.0  # log2 of the decay over BLOCK_M tokens from which the gates' gradient is corrected near the diagonal
_TILE = gl.constexpr(TILE)
_STATS = gl.constexpr(STATS)


@gluon.jit
def _produce(given, BLOCK_M: gl.constexpr, STAGES: gl.constexpr):
    """Copy K and V once, then Q and dO of every step, as soon as a stage is free."""
    (
        q_desc, k_desc, v_desc, do_desc, stat_desc, q_smem, k_smem, v_smem, do_smem, stat_smem,
        kv_full, full, empty, stop_ptr, batch, head, stat_row, n, first, Q,
    ) = given  # fmt: skip
    mbarrier.expect(kv_full, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(k_desc, [batch, n, head, 0], kv_full, k_smem)
    tma.async_copy_global_to_shared(v_desc, [batch, n, head, 0], kv_full, v_smem)
    m, steps = walk(stop_ptr, first, Q, BLOCK_M)  # after issuing the copies: a program's first load takes as long
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(empty.index(stage), (step // STAGES + 1) & 1)
        barrier = full.index(stage)
        mbarrier.expect(barrier, q_desc.block_type.nbytes + do_desc.block_type.nbytes + stat_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [batch, m, head, 0], barrier, q_smem.index(stage))
        tma.async_copy_global_to_shared(do_desc, [batch, m, head, 0], barrier, do_smem.index(stage))
        tma.async_copy_global_to_shared(stat_desc, [stat_row + m // BLOCK_M, 0], barrier, stat_smem.index(stage))
        m -= BLOCK_M


@gluon.jit
def _take_keys(
    given, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, DQ_APART: gl.constexpr,
    ORDERED: gl.constexpr,
):  # fmt: skip
    """Compute dK and dV of the tile's keys over all queries; without DQ_APART also dQ and the sums of dS."""
    (
        q_smem, k_smem, v_smem, do_smem, ds_smem, stat_smem, kv_full, full, empty, ds_full, ds_empty, turn,
        dq_ptr, rowsum_ptr, column_ptr, dk_ptr, dv_ptr, local_ptr, base_ptr, even_ptr, stop_ptr,
        batch, head, n, first, whole, scale2, scale, Q, T, H,
    ) = given  # fmt: skip
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_M, 16])
    kv_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, D, 16])
    keys_N = n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, s_layout))
    local_N = gl.load(local_ptr + keys_N, mask=keys_N < T, other=0.0)
    base = gl.load(base_ptr + n // _TILE)
    high = base.to(gl.float32)
    low = (base - high.to(gl.float64)).to(gl.float32)
    partial = gl.load(even_ptr) * _TILE
    begin, steps = walk(stop_ptr, first, Q, BLOCK_M)
    no_kv = gl.zeros((BLOCK_N, D), gl.float32, layout=kv_layout)
    k_ND = k_smem.reshape((BLOCK_N, D))
    v_ND = v_smem.reshape((BLOCK_N, D))
    mbarrier.wait(kv_full, 0)
    if DQ_APART:
        dk_ND, dv_ND = four_products(
            no_kv, no_kv, q_smem, k_ND, v_ND, do_smem, ds_smem, stat_smem, full, empty, ds_full, ds_empty,
            high, low, local_N, keys_N, begin, steps, whole, partial, scale2, Q, T, STAGES,
        )  # fmt: skip
    else:
        dk_ND, dv_ND = five_products(
            no_kv, no_kv, q_smem, k_ND, v_ND, do_smem, ds_smem, stat_smem, full, empty, turn, dq_ptr, rowsum_ptr, column_ptr,
            high, low, local_N, keys_N, begin, steps, whole, partial, scale2, Q, T, STAGES, ORDERED,
        )  # fmt: skip

    store_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [8, 1], [1, 0])
    rows_N = n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, store_layout))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, store_layout))
    out = ((batch.to(gl.int64) * T + rows_N) * H + head)[:, None] * D + d[None, :]
    inside = (rows_N < T)[:, None]
    gl.store(dk_ptr + out, gl.convert_layout((dk_ND * scale).to(q_smem.dtype), store_layout), mask=inside)
    gl.store(dv_ptr + out, gl.convert_layout(dv_ND.to(q_smem.dtype), store_layout), mask=inside)


@gluon.jit(do_not_specialize=["Q", "T", "H", "num_tiles", "query_steps", "at_once"])
def _backward_kernel(
    q_desc, k_desc, v_desc, do_desc, stat_desc, scratch_ptr, dk_ptr, dv_ptr,
    local_ptr, base_ptr, spans_ptr, scale2, scale, Q, T, H, num_tiles, query_steps, at_once,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    DQ_APART: gl.constexpr, DQ_REGISTERS: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    tile, batch_head = place(gl.program_id(0), num_tiles, gl.num_programs(0) // num_tiles, at_once)
    n = tile * BLOCK_N  # early keys have the most queries: start them first
    row = batch_head.to(gl.int64)
    steps = gl.num_programs(0).to(gl.int64) // num_tiles * query_steps  # of all heads: see `hopper_backward`
    dq_ptr = scratch_ptr + steps * (_STATS * BLOCK_M)
    rowsum_ptr = dq_ptr + steps * (BLOCK_M * D)
    column_ptr = rowsum_ptr + steps * BLOCK_M
    even_ptr = spans_ptr + row * num_tiles + n // _TILE
    stop_ptr = even_ptr + gl.num_programs(0)
    count_ptr = spans_ptr + 2 * gl.num_programs(0) + row * query_steps
    batch, head = batch_head // H, batch_head % H
    offset = T - Q
    first = gl.maximum(n - offset, 0) // BLOCK_M * BLOCK_M
    whole = (gl.maximum(n + BLOCK_N - 1 - offset, 0) + BLOCK_M - 1) // BLOCK_M * BLOCK_M

    q_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + q_desc.block_type.shape, q_desc.layout)
    do_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + do_desc.block_type.shape, do_desc.layout)
    k_smem = gl.allocate_shared_memory(q_desc.dtype, k_desc.block_type.shape, k_desc.layout)
    v_smem = gl.allocate_shared_memory(q_desc.dtype, v_desc.block_type.shape, v_desc.layout)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    ds_smem = gl.allocate_shared_memory(q_desc.dtype, [DS_STAGES if DQ_APART else 1, BLOCK_N, BLOCK_M], ds_layout)
    stat_smem = gl.allocate_shared_memory(gl.float32, [STAGES] + stat_desc.block_type.shape, stat_desc.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    # A barrier that nobody waits for must not be initialised: its shared memory would be reused for the arguments of the warps
    # below, and the initialising write may still land there when they are read.
    ds_full, ds_empty = full, empty
    if DQ_APART:
        ds_full = gl.allocate_shared_memory(gl.int64, [DS_STAGES, 1], mbarrier.MBarrierLayout())
        ds_empty = gl.allocate_shared_memory(gl.int64, [DS_STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(DS_STAGES):
            mbarrier.init(ds_full.index(stage), count=1)
            mbarrier.init(ds_empty.index(stage), count=1)
    # The barrier that is released after the sums signals that they are done.
    added = ds_empty if DQ_APART else empty
    TURNS: gl.constexpr = DS_STAGES if DQ_APART else STAGES
    turn, passed = full, empty
    if ORDERED:
        turn = gl.allocate_shared_memory(gl.int64, [TURNS, 1], mbarrier.MBarrierLayout())
        passed = gl.allocate_shared_memory(gl.int64, [TURNS, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(TURNS):
            mbarrier.init(turn.index(stage), count=1)
            mbarrier.init(passed.index(stage), count=1)
    dq_ptr += row * query_steps * (BLOCK_M * D)
    rowsum_ptr += row * query_steps * BLOCK_M
    column_ptr += row * T
    local_ptr += row * num_tiles * _TILE
    base_ptr += row * (num_tiles + 1)
    stat_row = batch_head * query_steps
    keys = (
        q_smem, k_smem, v_smem, do_smem, ds_smem, stat_smem, kv_full, full, empty, ds_full, ds_empty, turn,
        dq_ptr, rowsum_ptr, column_ptr, dk_ptr, dv_ptr, local_ptr, base_ptr, even_ptr, stop_ptr,
        batch, head, n, first, whole, scale2, scale, Q, T, H,
    )  # fmt: skip
    copies = (
        q_desc, k_desc, v_desc, do_desc, stat_desc, q_smem, k_smem, v_smem, do_smem, stat_smem,
        kv_full, full, empty, stop_ptr, batch, head, stat_row, n, first, Q,
    )  # fmt: skip
    turns = (stop_ptr, count_ptr, tile, first, Q)
    if DQ_APART:
        queries = (
            k_smem, ds_smem, kv_full, ds_full, ds_empty, turn, dq_ptr, rowsum_ptr, column_ptr, stop_ptr, n, first, Q, T
        )  # fmt: skip
        gl.warp_specialize(
            [
                (_take_keys, (keys, BLOCK_M, BLOCK_N, D, STAGES, DQ_APART, ORDERED)),
                (fifth_product, (queries, BLOCK_M, BLOCK_N, D, ORDERED)),
                (_produce, (copies, BLOCK_M, STAGES)),
                (wait_for_turns, (turn, passed, turns, BLOCK_M, TURNS, ORDERED)),
                (pass_turns, (added, passed, turns, BLOCK_M, TURNS, ORDERED)),
            ],
            [4, 1, 1, 1],
            [DQ_REGISTERS, REGISTERS, REGISTERS, REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (_take_keys, (keys, BLOCK_M, BLOCK_N, D, STAGES, DQ_APART, ORDERED)),
                (_produce, (copies, BLOCK_M, STAGES)),
                (wait_for_turns, (turn, passed, turns, BLOCK_M, TURNS, ORDERED)),
                (pass_turns, (added, passed, turns, BLOCK_M, TURNS, ORDERED)),
            ],
            [1, 1, 1],
            [REGISTERS, REGISTERS, REGISTERS],
        )


def hopper_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, prepared: Prepared, scale: float, deterministic: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dq, dk, dv in the inputs' dtype and d log_fgate (B, T, H) float32, all contiguous. k, v have q's head count."""
    B, Q, H, D = q.shape
    T = k.shape[1]
    N, M, steps = prepared.base.shape[-1] - 1, prepared.start.shape[-1], ceil_div(Q, BLOCK_M)
    device = q.device
    # (B, H, steps, .): STATS M for statistics of queries, M D for dQ's sums, M for dS's row sums; (B, H, T): dS's column sums.
    # One tensor, and one for both ends of the spans and the counters: in short calls allocations take longer than the kernels.
    stats = STATS * BLOCK_M
    scratch = torch.empty(B * H * (steps * (stats + BLOCK_M * (D + 1)) + T), device=device, dtype=torch.float32)
    spans = torch.empty(B * H * (2 * N + steps), device=device, dtype=torch.int32)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    dgate = torch.empty(B, T, H, device=device, dtype=torch.float32)
    launch(
        before_kernel, (B * H * steps,),
        (), (o, do, lse, scratch, prepared.start, prepared.first_key, spans, q, k, v, prepared.local, prepared.base),
        (*do.stride(), *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], scale * LOG2E, B * H, Q, T, H, steps, N, M),
        BLOCK_M=BLOCK_M, D=D, STEPS=M.bit_length(), LEAST_DECAY=LEAST_DECAY,
    )  # fmt: skip
    launch(
        _backward_kernel, (N * B * H,),
        (
            tile_descriptor(q, BLOCK_M), tile_descriptor(k, BLOCK_N), tile_descriptor(v, BLOCK_N),
            tile_descriptor(do, BLOCK_M), rows_descriptor(scratch, B * H * steps, stats, stats),
        ),
        (scratch, dk, dv, prepared.local, prepared.base, spans),
        (scale * LOG2E, scale, Q, T, H, N, steps, max(PROGRAMS_SIDE_BY_SIDE // N, HEADS_AT_ONCE.value)),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, D=D, STAGES=STAGES[D], REGISTERS=PRODUCER_REGISTERS,
        DQ_APART=DQ_APART[D], DQ_REGISTERS=DQ_REGISTERS, ORDERED=deterministic, num_warps=8,
    )  # fmt: skip
    launch(
        after_kernel, (B * H * (steps + 1),), (), (scratch, dq, dgate), (scale, B * H, Q, T, H, steps),
        BLOCK_M=BLOCK_M, D=D, WARPS_N=1 if DQ_APART[D] else 2, BLOCK=1024, num_warps=8,
    )  # fmt: skip
    return dq, dk, dv, dgate
