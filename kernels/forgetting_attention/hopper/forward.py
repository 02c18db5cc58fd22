"""Forward pass for Hopper GPUs in Gluon: two warpgroups with 64 queries each, and a producer warp for the TMA copies.

Optimistic softmax: before the diagonal the weights are exp2 of the logits relative to a fixed reference, `c` of the tile's
first query (every D is then <= 0), with no maximum and no rescaling. bfloat16 has float32's range, so P loses nothing; float16
has not, and always uses the portable kernel. Then the result enters the diagonal as one key of weight 1, and the diagonal, with
nearly all of the weight of local gates, uses a running maximum: the largest weight there is 1, which bfloat16 holds exactly.

`_trusted` tests per row that the shortcut was safe; a block with a row that fails is marked and recomputed by the portable
kernel with a running maximum. The final sum alone proves nothing: a row's own decay can bring values back into range that had
left it before the diagonal. With `before` the sum before the diagonal and `lse` log2 of the whole sum, both relative to the
reference, a row is correct if
* before < 2^120: weights are >= 0, so no partial sum was larger, and 1 / before is a normal number.
* o is finite: products with V are as large as `before` times V and may overflow first. An inf stays inf or becomes NaN,
  whatever is done to it later.
* lse > -60: weights below 2^-126 became 0. Over all keys these sum to less than 2^-100, negligible next to 2^-60.
  If no keys come before the diagonal nothing was lost, whatever lse is.
On the diagonal no weight exceeds 1 and the sum is between 1 and 1 + keys; an inf or NaN among the logits ends up in o."""

# ruff: noqa: RUF005 -- Gluon, which compiles this, does not support unpacking in lists

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from ...attention_shared.launch import launch, multiprocessors
from ..portable.prepare import LOG2E, Prepared
from ..visibility import TILE
from .copies import HEADS_AT_ONCE, get, place, put, rows_descriptor, tile_descriptor
from .forward_steps import TURNS_AT, Memory, lane_sums, walk_before_diagonal, walk_diagonal

BLOCK_M = 64
BLOCK_N = 128
STAGES = {64: 3, 128: 2}
Q_STAGES = gl.constexpr(2)
_TILE = gl.constexpr(TILE)


class Problem(NamedTuple):
    """Addresses and sizes."""

    o_ptr: Any
    lse_ptr: Any
    redo_ptr: Any
    local_ptr: Any
    base_ptr: Any
    first_key_ptr: Any
    scale2: Any
    Q: Any
    T: Any
    H: Any
    num_tiles: Any
    query_tiles: Any


class Descriptors(NamedTuple):
    """Of the tensors that are copied."""

    q: Any
    k: Any
    v: Any
    local: Any


class Queue(NamedTuple):
    """Counter of the tiles that programs have taken, and what a tile's coordinates are computed from."""

    taken_ptr: Any
    start_ptr: Any
    first_key_ptr: Any
    Q: Any
    T: Any
    H: Any
    query_tiles: Any
    tiles: Any


@gluon.jit
def _trusted(before, lse, spoiled, keys_before):
    """Tell whether a row stayed in range; see the top of this file. `spoiled` is 0, or NaN if o is not finite."""
    return (before < 2.0**120) & (spoiled == 0.0) & ((lse > -60.0) | (keys_before == 0))


@gluon.jit
def _tile(number, queue):
    """Return (batch * H + head, first query, first key, first key that all rows see) of a tile, or of the last tile."""
    Q, query_tiles = queue.Q, queue.query_tiles
    at = gl.minimum(number, queue.tiles - 1)
    place_in_order, row = place(at, query_tiles, queue.tiles // query_tiles, HEADS_AT_ONCE)
    tile = query_tiles - 1 - place_in_order  # late query tiles have the most keys: start them first
    m = tile * _TILE
    start = gl.load(queue.start_ptr + (row.to(gl.int64) * query_tiles + tile)) * _TILE
    common = gl.load(queue.first_key_ptr + (row.to(gl.int64) * Q + gl.minimum(m + _TILE, Q) - 1))
    return row, m, start, common


@gluon.jit
def _produce(
    sources, memory, queue, HEADS_PER_KEY: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr
):
    """Publish each tile's coordinates and copy its query blocks, then K with the keys' decay, and V, as stages become free."""
    Q, T, H, tiles = queue.Q, queue.T, queue.H, queue.tiles
    number = gl.program_id(0)
    row, m, start, common = _tile(number, queue)
    count = 0
    step = 0
    while number < tiles:
        slot = count % Q_STAGES
        mbarrier.wait(memory.q_empty.index(slot), (count // Q_STAGES + 1) & 1)
        put(memory.tile.index(slot * 6), row)
        put(memory.tile.index(slot * 6 + 1), m)
        put(memory.tile.index(slot * 6 + 2), start)
        put(memory.tile.index(slot * 6 + 3), common)
        for group in gl.static_range(2):
            put(memory.tile.index(slot * 6 + 4 + group), slot * 2 + group)
        mbarrier.arrive(memory.q_full.index(slot), count=1)
        mbarrier.expect(memory.q_full.index(slot), 2 * sources.q.block_type.nbytes)
        batch, head = row // H, row % H
        key_head = head // HEADS_PER_KEY
        for group in gl.static_range(2):
            tma.async_copy_global_to_shared(
                sources.q, [batch, m + group * BLOCK_M, head, 0], memory.q_full.index(slot), memory.q.index(slot * 2 + group)
            )
        first, stop, local_row = start, gl.minimum(m + _TILE, Q) + (T - Q), row
        for n in range(first, stop, BLOCK_N):
            stage = step % STAGES
            parity = (step // STAGES + 1) & 1
            mbarrier.wait(memory.k_empty.index(stage), parity)
            mbarrier.expect(memory.k_full.index(stage), sources.k.block_type.nbytes + sources.local.block_type.nbytes)
            tma.async_copy_global_to_shared(
                sources.k, [batch, n, key_head, 0], memory.k_full.index(stage), memory.k.index(stage)
            )
            tma.async_copy_global_to_shared(
                sources.local, [local_row, n], memory.k_full.index(stage), memory.local.index(stage)
            )
            mbarrier.wait(memory.v_empty.index(stage), parity)
            mbarrier.expect(memory.v_full.index(stage), sources.v.block_type.nbytes)
            tma.async_copy_global_to_shared(
                sources.v, [batch, n, key_head, 0], memory.v_full.index(stage), memory.v.index(stage)
            )
            step += 1
            if n == first:  # take the next tile while these copies are in flight
                taken = gl.atomic_add(queue.taken_ptr, 1, sem="relaxed")
                gl.store(queue.taken_ptr, 0, mask=taken == tiles - 1)  # the last increment: all programs have their tiles
                number = taken + gl.num_programs(0)
                row, m, start, common = _tile(number, queue)
        count += 1
    slot = count % Q_STAGES
    mbarrier.wait(memory.q_empty.index(slot), (count // Q_STAGES + 1) & 1)
    put(memory.tile.index(slot * 6), -1)
    mbarrier.arrive(memory.q_full.index(slot), count=2)


@gluon.jit
def _consume(
    memory, turns, problem, GROUP: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr,
    STAGES: gl.constexpr, SHORT: gl.constexpr,
):  # fmt: skip
    """Compute one warpgroup's 64 queries of each tile."""
    step = 0
    turn = 0
    count = 0
    mbarrier.wait(memory.q_full.index(0), 0)
    batch_head = get(memory.tile.index(0), 4)
    while batch_head >= 0:
        slot = count % Q_STAGES
        step, turn = _rows(
            memory, turns, problem, memory.tile.index(slot * 6 + 4 + GROUP), memory.q_empty.index(slot),
            batch_head, get(memory.tile.index(slot * 6 + 1), 4), get(memory.tile.index(slot * 6 + 2), 4),
            get(memory.tile.index(slot * 6 + 3), 4), step, turn, GROUP, BLOCK_M, BLOCK_N, D, STAGES, SHORT,
        )  # fmt: skip
        count += 1
        slot = count % Q_STAGES
        mbarrier.wait(memory.q_full.index(slot), count // Q_STAGES & 1)
        batch_head = get(memory.tile.index(slot * 6), 4)


@gluon.jit
def _rows(
    memory, turns, problem, q_at, q_empty, batch_head, m, start, common, step, turn,
    GROUP: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
    SHORT: gl.constexpr,
):  # fmt: skip
    """Compute 64 queries of a tile."""
    Q, T, H = problem.Q, problem.T, problem.H
    row = batch_head.to(gl.int64)
    batch, head = batch_head // H, batch_head % H
    local_ptr = problem.local_ptr + row * problem.num_tiles * _TILE
    base_ptr = problem.base_ptr + row * (problem.num_tiles + 1)
    query = m + (T - Q)
    ref = gl.load(base_ptr + query // _TILE) + gl.load(local_ptr + query)
    diagonal = gl.maximum(query // BLOCK_N * BLOCK_N, start)
    uneven = gl.minimum(gl.maximum((common + BLOCK_N - 1) // BLOCK_N * BLOCK_N, start), diagonal)
    stop = gl.minimum(m + _TILE, Q) + (T - Q)

    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    m += GROUP * BLOCK_M
    rows_M = m + gl.arange(0, BLOCK_M, layout=row_layout)
    position_M = rows_M + (T - Q)
    inside_M = rows_M < Q
    first_M = gl.load(problem.first_key_ptr + row * Q + rows_M, mask=inside_M, other=T)
    row_M = (gl.load(base_ptr + position_M // _TILE, mask=inside_M, other=0.0) - ref).to(gl.float32)
    row_M += gl.load(local_ptr + position_M, mask=inside_M, other=0.0)
    acc_MD = gl.zeros((BLOCK_M, D), gl.float32, layout=acc_layout)
    before_M8 = lane_sums(gl.zeros((BLOCK_M, BLOCK_N), gl.float32, layout=s_layout))
    for part in gl.static_range(2):
        acc_MD, before_M8, step, turn = walk_before_diagonal(
            acc_MD, before_M8, step, turn, memory, turns, q_at, base_ptr, ref, first_M, problem.scale2,
            start if part == 0 else uneven, uneven if part == 0 else diagonal, GROUP, BLOCK_N, D, STAGES, part == 0,
        )  # fmt: skip
    before_M = gl.convert_layout(gl.sum(before_M8, 1), row_layout)
    acc_MD, total_M, top_M, step = walk_diagonal(
        acc_MD, before_M, step, memory, q_at, base_ptr, ref, row_M, position_M, first_M, problem.scale2,
        diagonal, stop, (diagonal == query) & (common <= query),
        BLOCK_N, D, STAGES, BLOCK_M * (GROUP + 1) if SHORT else 0,
    )  # fmt: skip
    mbarrier.arrive(q_empty, count=1)

    empty_M = first_M > position_M  # a padded query: output 0, and +inf makes its probabilities 0 in the backward kernels
    lse_M = top_M + gl.log2(total_M) - row_M
    spoiled_M = gl.convert_layout(gl.sum(acc_MD * 0.0, 1), row_layout)
    trusted_M = _trusted(before_M, lse_M, spoiled_M, diagonal - start) | empty_M | (rows_M >= Q)
    gl.store(problem.redo_ptr + (row * problem.query_tiles * 2 + m // BLOCK_M), gl.max(gl.where(trusted_M, 0, 1), 0))
    gl.store(problem.lse_ptr + row * Q + rows_M, gl.where(empty_M, float("inf"), lse_M), mask=inside_M)
    share_M = gl.convert_layout(gl.where(empty_M, 0.0, 1.0 / total_M), gl.SliceLayout(1, acc_layout))
    store_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    o_MD = gl.convert_layout((acc_MD * share_M[:, None]).to(memory.q.dtype), store_layout)
    out_M = m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, store_layout))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, store_layout))
    out = ((batch.to(gl.int64) * Q + out_M) * H + head)[:, None] * D + d[None, :]
    gl.store(problem.o_ptr + out, o_MD, mask=(out_M < Q)[:, None])
    return step, turn


@gluon.jit(do_not_specialize=["Q", "T", "H", "num_tiles", "query_tiles", "tiles"])
def _forward_kernel(
    q_desc, k_desc, v_desc, local_desc, o_ptr, lse_ptr, redo_ptr, local_ptr, base_ptr, first_key_ptr, start_ptr, taken_ptr,
    scale2, Q, T, H, num_tiles, query_tiles, tiles, HEADS_PER_KEY: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, SHORT: gl.constexpr,
):  # fmt: skip
    """Process tiles from a counter shared by the persistent programs: the next tile is copied during the end of the current."""
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [2 * Q_STAGES] + q_desc.block_type.shape, q_desc.layout)
    k_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + k_desc.block_type.shape, k_desc.layout)
    v_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES] + v_desc.block_type.shape, v_desc.layout)
    local_smem = gl.allocate_shared_memory(gl.float32, [STAGES] + local_desc.block_type.shape, local_desc.layout)
    tile_smem = gl.allocate_shared_memory(gl.int32, [6 * Q_STAGES, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = k_full  # unused: a barrier that nobody waits for must not be initialised, see `_backward_kernel`
    if D == TURNS_AT:
        turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(2):
            mbarrier.init(turns.index(i), count=1)
    for slot in gl.static_range(Q_STAGES):
        mbarrier.init(q_full.index(slot), count=2)  # the tile's coordinates, and the copy
        mbarrier.init(q_empty.index(slot), count=2)  # both warpgroups
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_empty.index(stage), count=2)
    memory = Memory(q_smem, k_smem, v_smem, local_smem, tile_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty)
    problem = Problem(
        o_ptr, lse_ptr, redo_ptr, local_ptr, base_ptr, first_key_ptr, scale2, Q, T, H, num_tiles, query_tiles
    )  # fmt: skip
    sources = Descriptors(q_desc, k_desc, v_desc, local_desc)
    queue = Queue(taken_ptr, start_ptr, first_key_ptr, Q, T, H, query_tiles, tiles)
    gl.warp_specialize(
        [
            (_consume, (memory, turns, problem, 0, BLOCK_M, BLOCK_N, D, STAGES, SHORT)),
            (_consume, (memory, turns, problem, 1, BLOCK_M, BLOCK_N, D, STAGES, SHORT)),
            (_produce, (sources, memory, queue, HEADS_PER_KEY, BLOCK_M, BLOCK_N, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )


def hopper_forward(q: Tensor, k: Tensor, v: Tensor, prepared: Prepared, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, lse (B, H, Q), and marks of blocks of 64 queries to redo, int32 (B, H, 2 M). bfloat16, D of 64 or 128."""
    B, Q, H, D = q.shape
    T, key_heads = k.shape[1:3]
    N, M = prepared.base.shape[-1] - 1, prepared.start.shape[-1]
    o = torch.empty(B, Q, H, D, device=q.device, dtype=q.dtype)
    lse = torch.empty(B, H, Q, device=q.device, dtype=torch.float32)
    redo = torch.empty(B, H, 2 * M, device=q.device, dtype=torch.int32)
    tiles = M * B * H
    launch(
        _forward_kernel, (min(tiles, multiprocessors(q.device)),),
        (
            tile_descriptor(q, BLOCK_M), tile_descriptor(k, BLOCK_N), tile_descriptor(v, BLOCK_N),
            rows_descriptor(prepared.local, B * H, N * TILE, BLOCK_N),
        ),
        (o, lse, redo, *prepared), (scale * LOG2E, Q, T, H, N, M, tiles),
        HEADS_PER_KEY=H // key_heads, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, D=D, STAGES=STAGES[D],
        SHORT=D == 64, num_warps=4,  # at 128 the second code path costs more than it saves
    )  # fmt: skip
    return o, lse, redo
