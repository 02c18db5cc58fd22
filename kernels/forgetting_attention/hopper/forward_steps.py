"""Steps of the Hopper forward pass: a warpgroup loops over blocks of keys, first those before the diagonal, relative to a fixed
reference, then those on it, with a running maximum. `forward` says why that is safe.

Legend: M queries of a warpgroup, N keys of a step, D head dimension."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from ..visibility import TILE
from .copies import get

TURNS_AT = gl.constexpr(64)
"""Head size at which warpgroups take turns: see `walk_before_diagonal`."""
_TILE = gl.constexpr(TILE)


class Memory(NamedTuple):
    """Shared memory, and the barriers of its stages: full when a copy has arrived, empty when warpgroups are done with it."""

    q: Any
    k: Any
    v: Any
    local: Any
    """Decays of the keys of a stage."""
    tile: Any
    """Six integers for each tile of queries: see `_produce`."""
    q_full: Any
    q_empty: Any
    k_full: Any
    k_empty: Any
    v_full: Any
    v_empty: Any


@gluon.jit
def _queries(q_smem, q_at):
    """Return a warpgroup's queries, (M, D). Their index is read again before each product: if products share an address, ptxas
    12.8 computes parts of it before the first of them and reuses these, even on a path that skips the first (`strays` in
    tests/kernels/sass.py finds such code)."""
    shape: gl.constexpr = q_smem.shape
    return q_smem.index(get(q_at, 4)).reshape((shape[2], shape[4]))


@gluon.jit
def _shift(base_ptr, n, ref):
    """Compute ref minus the base of n's tile, to which its decays are relative."""
    return (ref - gl.load(base_ptr + n // _TILE)).to(gl.float32)


@gluon.jit
def lane_sums(p_MN):
    """Return each thread's part of the row sums, (M, 8): reducing across lanes in every step takes a fifth of the weights'
    time."""
    return gl.sum(p_MN.reshape((p_MN.shape[0], p_MN.shape[1] // 8, 8)), 1)


@gluon.jit
def _weights(s_MN, decay_1N, n, first_M, scale2, BLOCK_N: gl.constexpr, EDGE: gl.constexpr):
    """Compute exp2 of the logits, relative to the reference."""
    p_MN = gl.exp2(s_MN * scale2 + decay_1N)
    if EDGE:
        keys_N = n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, s_MN.type.layout))
        p_MN = gl.where(keys_N[None, :] >= first_M[:, None], p_MN, 0.0)
    return p_MN


@gluon.jit
def walk_before_diagonal(
    acc_MD, total_M8, step, turn, memory, turns, q_at, base_ptr, ref, first_M, scale2, start, stop, GROUP: gl.constexpr,
    BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, EDGE: gl.constexpr,
):  # fmt: skip
    """Loop over keys start..stop, all before the diagonal. The weights of one step are computed while the product with V of
    the previous step runs. EDGE: some pairs are masked.

    TURNS: the warpgroups alternate in issuing their products (ping-pong), so that one computes weights while the other's
    products run; otherwise both wait for products at the same time and then for exponentials. At 128 the products take twice
    as long, and waiting for a turn costs 3%."""
    BLOCK_M: gl.constexpr = acc_MD.shape[0]
    TURNS: gl.constexpr = D == TURNS_AT
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_MD.type.layout, 2)
    dtype: gl.constexpr = memory.q.dtype
    no_s = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, layout=s_layout)
    if start < stop:
        q_MD = _queries(memory.q, q_at)
        stage = step % STAGES
        mbarrier.wait(memory.k_full.index(stage), step // STAGES & 1)
        k_ND = memory.k.index(stage).reshape((BLOCK_N, D))
        local_1N = memory.local.index(stage).load(s_layout)
        shift = _shift(base_ptr, start, ref)
        s_MN = warpgroup_mma(q_MD, k_ND.permute((1, 0)), no_s, use_acc=False, is_async=True)
        s_MN = warpgroup_mma_wait(0, deps=[s_MN])
        mbarrier.arrive(memory.k_empty.index(stage), count=1)
        p_MN = _weights(s_MN, shift - local_1N, start, first_M, scale2, BLOCK_N, EDGE)
        total_M8 += lane_sums(p_MN)
        p_a = gl.convert_layout(p_MN.to(dtype), a_layout)
        base = gl.load(base_ptr + (start + BLOCK_N) // _TILE)
        mbarrier.wait(memory.k_full.index((step + 1) % STAGES), (step + 1) // STAGES & 1, pred=start + BLOCK_N < stop)
        for n in range(start + BLOCK_N, stop, BLOCK_N):
            stage = (step + 1) % STAGES
            k_ND = memory.k.index(stage).reshape((BLOCK_N, D))
            local_1N = memory.local.index(stage).load(s_layout)
            shift = (ref - base).to(gl.float32)
            base = gl.load(base_ptr + (n + BLOCK_N) // _TILE)
            v_stage = step % STAGES
            mbarrier.wait(memory.v_full.index(v_stage), step // STAGES & 1)
            if TURNS:
                mbarrier.wait(turns.index(GROUP), (turn + 1 - GROUP) & 1)
            s_MN = warpgroup_mma(q_MD, k_ND.permute((1, 0)), no_s, use_acc=False, is_async=True)
            acc_MD = warpgroup_mma(p_a, memory.v.index(v_stage).reshape((BLOCK_N, D)), acc_MD, is_async=True)
            if TURNS:
                mbarrier.arrive(turns.index(1 - GROUP), count=1)
            turn += 1
            s_MN = warpgroup_mma_wait(1, deps=[s_MN])
            mbarrier.arrive(memory.k_empty.index(stage), count=1)
            p_MN = _weights(s_MN, shift - local_1N, n, first_M, scale2, BLOCK_N, EDGE)
            total_M8 += lane_sums(p_MN)
            # Here, not at the top: a wait is a loop, across which ptxas moves nothing, so the weights stay before the product.
            mbarrier.wait(memory.k_full.index((step + 2) % STAGES), (step + 2) // STAGES & 1, pred=n + BLOCK_N < stop)
            acc_MD, p_a = warpgroup_mma_wait(0, deps=[acc_MD, p_a])
            mbarrier.arrive(memory.v_empty.index(v_stage), count=1)
            p_a = gl.convert_layout(p_MN.to(dtype), a_layout)
            step += 1
        v_stage = step % STAGES
        mbarrier.wait(memory.v_full.index(v_stage), step // STAGES & 1)
        acc_MD = warpgroup_mma(p_a, memory.v.index(v_stage).reshape((BLOCK_N, D)), acc_MD, is_async=True)
        acc_MD = warpgroup_mma_wait(0, deps=[acc_MD])
        mbarrier.arrive(memory.v_empty.index(v_stage), count=1)
        step += 1
    return acc_MD, total_M8, step, turn


@gluon.jit
def walk_diagonal(
    acc_MD, total_M, step, memory, q_at, base_ptr, ref, row_M, position_M, first_M, scale2, start, stop, plain,
    BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, SHORT: gl.constexpr,
):  # fmt: skip
    """Loop over keys start..stop with a running maximum and the true decays (c_i - c_j); one or two steps. If `plain`, one
    step, in which the diagonal starts at the first key, nothing else is masked, and SHORT keys are enough.

    Returns the weighted values, the sum of the weights, and the maximum."""
    acc_row: gl.constexpr = gl.SliceLayout(1, acc_MD.type.layout)
    some_M = total_M > 0.0
    top_M = gl.where(some_M, gl.log2(total_M) + row_M, float("-inf"))
    mean_M = gl.where(some_M, 1.0 / total_M, 0.0)
    acc_MD = acc_MD * gl.convert_layout(mean_M, acc_row)[:, None]
    total_M = gl.where(some_M, 1.0, 0.0)
    if SHORT > 0 and plain:
        acc_MD, total_M, top_M = _diagonal_step(
            acc_MD, total_M, top_M, step, memory, q_at, base_ptr, ref, row_M, position_M, first_M,
            scale2, start, SHORT, False, BLOCK_N, D, STAGES,
        )  # fmt: skip
        step += 1
    else:
        for n in range(start, stop, BLOCK_N):
            acc_MD, total_M, top_M = _diagonal_step(
                acc_MD, total_M, top_M, step, memory, q_at, base_ptr, ref, row_M, position_M, first_M,
                scale2, n, BLOCK_N, True, BLOCK_N, D, STAGES,
            )  # fmt: skip
            step += 1
    return acc_MD, total_M, top_M, step


@gluon.jit
def _diagonal_step(
    acc_MD, total_M, top_M, step, memory, q_at, base_ptr, ref, row_M, position_M, first_M, scale2, n,
    KEYS: gl.constexpr, EDGE: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Process the first KEYS of a step's keys."""
    BLOCK_M: gl.constexpr = acc_MD.shape[0]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_MD.type.layout, 2)
    acc_row: gl.constexpr = gl.SliceLayout(1, acc_MD.type.layout)
    row: gl.constexpr = gl.SliceLayout(1, s_layout)
    outer: gl.constexpr = total_M.type.layout  # the same layout by another name
    no_s = gl.zeros((BLOCK_M, KEYS), gl.float32, layout=s_layout)
    row_M, total_M, top_M = gl.convert_layout(row_M, row), gl.convert_layout(total_M, row), gl.convert_layout(top_M, row)
    position_M, first_M = gl.convert_layout(position_M, row), gl.convert_layout(first_M, row)
    q_MD = _queries(memory.q, q_at)
    stage = step % STAGES
    mbarrier.wait(memory.k_full.index(stage), step // STAGES & 1)
    k_ND = memory.k.index(stage).reshape((BLOCK_N, D)).slice(0, KEYS, dim=0)
    local_1N = (
        memory.local.index(stage).slice(0, KEYS, dim=1).load(s_layout)
    )  # written after the product, they would wait for it
    shift = _shift(base_ptr, n, ref)
    s_MN = warpgroup_mma(q_MD, k_ND.permute((1, 0)), no_s, use_acc=False, is_async=True)
    s_MN = warpgroup_mma_wait(0, deps=[s_MN])
    mbarrier.arrive(memory.k_empty.index(stage), count=1)
    keys_N = n + gl.arange(0, KEYS, layout=gl.SliceLayout(0, s_layout))
    # Add the decays first: near the diagonal both are large and nearly cancel.
    x_MN = s_MN * scale2 + ((shift - local_1N) + row_M[:, None])
    x_MN = gl.where(keys_N[None, :] <= position_M[:, None], x_MN, float("-inf"))
    if EDGE:
        x_MN = gl.where(keys_N[None, :] >= first_M[:, None], x_MN, float("-inf"))
    new_top_M = gl.maximum(top_M, gl.max(x_MN, 1))
    finite_M = gl.where(new_top_M == float("-inf"), 0.0, new_top_M)  # a padded query: no visible key
    p_MN = gl.exp2(x_MN - finite_M[:, None])
    shrink_M = gl.exp2(top_M - finite_M)
    total_M = total_M * shrink_M + gl.sum(p_MN, 1)
    acc_MD = acc_MD * gl.convert_layout(shrink_M, acc_row)[:, None]
    p_a = gl.convert_layout(p_MN.to(memory.q.dtype), a_layout)
    mbarrier.wait(memory.v_full.index(stage), step // STAGES & 1)
    v_ND = memory.v.index(stage).reshape((BLOCK_N, D)).slice(0, KEYS, dim=0)
    acc_MD = warpgroup_mma(p_a, v_ND, acc_MD, is_async=True)
    acc_MD, p_a = warpgroup_mma_wait(0, deps=[acc_MD, p_a])
    mbarrier.arrive(memory.v_empty.index(stage), count=1)
    return acc_MD, gl.convert_layout(total_M, outer), gl.convert_layout(new_top_M, outer)
