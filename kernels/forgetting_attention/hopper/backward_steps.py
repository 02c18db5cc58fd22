"""Steps of the warps in the Hopper backward pass: one key tile, its queries step by step.

The warps that hold the keys' gradients compute S, dP, dV and dK, all transposed (keys are rows, queries columns), so that P and
dS feed the next products directly from registers. Only dS also goes through shared memory, for dQ: at a head size of 64 a
separate warpgroup computes dQ and the sums of dS; at 128 there are no registers for it, and the warps of the keys do.

Row sums of dS are 0 only up to the rounding of O, and are used (see `portable.backward`): like the column sums, they are of dS
as rounded in shared memory, so that the terms of pairs that do not span a gate cancel exactly. dQ is summed in a float32 buffer
in register order: one 16-byte reduction per four numbers, those of adjacent threads at adjacent addresses.

Legend: M queries of a step, N keys, D head dimension, L sums of a thread. `stat_1M` has the statistics of a step's queries:
lse, delta, the bits of their first keys, and M numbers of which the first two add up to the reference of lse."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from ..visibility import TILE
from .turns import walk

DS_STAGES = gl.constexpr(2)  # buffers of dS in shared memory, for the dQ warpgroup
_TILE = gl.constexpr(TILE)
_DQ_REGISTERS = gl.constexpr(32)  # per thread: 64 x 64 over 4 warps, 64 x 128 over 8


def _reductions(warps: int) -> str:
    """Return PTX that adds all dQ registers of a thread, four per reduction, threads at adjacent addresses. Only the first of
    the addresses is used: each of the others would take two registers."""
    count = _DQ_REGISTERS.value
    values = [", ".join(f"${2 * count + i + j}" for j in range(4)) for i in range(0, count, 4)]
    adds = [f"red.relaxed.gpu.global.add.v4.f32 [${count} + {512 * warps * i}], {{{four}}};" for i, four in enumerate(values)]
    return "\n".join(["{", *adds, *(f"mov.b32 ${i}, 0;" for i in range(count)), "}"])


_ADD_4, _ADD_8 = gl.constexpr(_reductions(4)), gl.constexpr(_reductions(8))
_OF = gl.constexpr(",".join(x for x in ("=r", "l", "f") for _ in range(_DQ_REGISTERS.value)))

# Round two numbers to 16 bits, and return the rounded numbers in float32, too: one conversion for both.
_ROUND_BF16 = gl.constexpr("cvt.rn.bf16x2.f32 $0, $4, $3; shl.b32 $1, $0, 16; and.b32 $2, $0, 0xffff0000;")
_ROUND_FP16 = gl.constexpr("""
{
.reg .b16 l, h;
cvt.rn.f16x2.f32 $0, $4, $3; mov.b32 {l, h}, $0; cvt.f32.f16 $1, l; cvt.f32.f16 $2, h;
}
""")


@gluon.jit
def _shift(stat_1M, high, low):
    """Compute c of the first query of a step's tile, the reference of `lse`, minus c before the key tile, `high` + `low`."""
    BLOCK_M: gl.constexpr = stat_1M.shape[1] // 4
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 8], [1, 0])
    ref_high = gl.max(gl.max(stat_1M.slice(3 * BLOCK_M, 1, dim=1).load(layout), 1), 0)
    ref_low = gl.max(gl.max(stat_1M.slice(3 * BLOCK_M + 1, 1, dim=1).load(layout), 1), 0)
    return (ref_high - high) + (ref_low - low)


@gluon.jit
def _weights(s_NM, stat_1M, lse_1M, shift_N, keys_N, m, whole, partial, scale2, offset):
    """Compute P of a step. Decays are added first: near the diagonal both are large and nearly cancel. lse covers every
    visible key: p <= 1."""
    layout: gl.constexpr = s_NM.type.layout
    BLOCK_M: gl.constexpr = s_NM.shape[1]
    p_NM = gl.exp2(s_NM * scale2 + (shift_N[:, None] - lse_1M))
    if (m < whole) | (m + BLOCK_M > partial):
        position_M = m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, layout)) + offset
        first_1M = stat_1M.slice(2 * BLOCK_M, BLOCK_M, dim=1).load(layout).to(gl.int32, bitcast=True)
        seen_NM = (keys_N[:, None] <= position_M[None, :]) & (keys_N[:, None] >= first_1M)
        p_NM = gl.where(seen_NM, p_NM, 0.0)
    return p_NM


@gluon.jit
def _places(layout: gl.constexpr, BLOCK_M: gl.constexpr, D: gl.constexpr, WARPS: gl.constexpr):
    """Return the byte offset of each dQ register: four registers of a thread are adjacent, then those of the next thread."""
    WIDTH: gl.constexpr = D * (BLOCK_M // 16) // WARPS
    r = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, layout))[:, None]
    c = gl.arange(0, D, layout=gl.SliceLayout(0, layout))[None, :]
    warp = c // WIDTH * (BLOCK_M // 16) + r // 16
    thread = warp * 32 + r % 8 * 4 + c % 8 // 2
    return ((c % WIDTH // 8 * (32 * WARPS) + thread) * 4 + r % 16 // 8 * 2 + c % 2) * 4


@gluon.jit
def _add_dq(dq_ptr, dq_MD, places, m, WARPS: gl.constexpr):
    ADD: gl.constexpr = _ADD_4 if WARPS == 4 else _ADD_8
    target = (dq_ptr + m * dq_MD.shape[1]).to(gl.int64, bitcast=True) + places
    gl.inline_asm_elementwise(ADD, _OF, [target, dq_MD], dtype=gl.int32, is_pure=False, pack=_DQ_REGISTERS)


@gluon.jit
def _add_row_sums(rowsum_ptr, sum_M, m):
    gl.atomic_add(rowsum_ptr + (m + gl.arange(0, sum_M.shape[0], layout=sum_M.type.layout)), sum_M, sem="relaxed")


@gluon.jit
def _lanes(ds_NM):
    """Return the partial column sums of the threads of 4 warps: reducing across lanes in each step would take longer."""
    return gl.sum(gl.sum(ds_NM.reshape((ds_NM.shape[0], ds_NM.shape[1] // 32, 16, 2)), 3), 1)


@gluon.jit
def four_products(
    dk_ND, dv_ND, q_smem, k_ND, v_ND, do_smem, ds_smem, stat_smem, full, empty, ds_full, ds_empty,
    high, low, local_N, keys_N, begin, steps, whole, partial, scale2, Q, T, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute dK and dV over all steps, and pass dS on. S of a step is issued in the previous step, after dK, and complete when
    the step begins: a product still in flight from one step to the next makes ptxas wait after every product.

    K is held in registers too, as shared memory is as busy as the tensor cores; for V there are no registers left."""
    BLOCK_N: gl.constexpr = k_ND.shape[0]
    D: gl.constexpr = k_ND.shape[1]
    BLOCK_M: gl.constexpr = ds_smem.shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_M, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, dk_ND.type.layout, 2)
    no_s = gl.zeros((BLOCK_N, BLOCK_M), gl.float32, layout=s_layout)
    k_a = k_ND.load(gl.DotOperandLayout(0, s_layout, 2))
    m = begin
    mbarrier.wait(full.index(0), 0, pred=steps > 0)
    first_q_MD = q_smem.index(0).reshape((BLOCK_M, D))
    s_NM = warpgroup_mma_wait(0, deps=[warpgroup_mma(k_a, first_q_MD.permute((1, 0)), no_s, use_acc=False, is_async=True)])
    for step in range(steps):
        stage = step % STAGES
        q_MD = q_smem.index(stage).reshape((BLOCK_M, D))
        do_MD = do_smem.index(stage).reshape((BLOCK_M, D))
        stat_1M = stat_smem.index(stage)
        shift_N = _shift(stat_1M, high, low) - local_N
        dp_NM = warpgroup_mma(v_ND, do_MD.permute((1, 0)), no_s, use_acc=False, is_async=True)
        lse_1M = stat_1M.slice(0, BLOCK_M, dim=1).load(s_layout)
        p_NM = _weights(s_NM, stat_1M, lse_1M, shift_N, keys_N, m, whole, partial, scale2, T - Q)
        p_a = gl.convert_layout(p_NM.to(q_smem.dtype), a_layout)
        delta_1M = stat_1M.slice(BLOCK_M, BLOCK_M, dim=1).load(s_layout)  # written after the wait, the load would follow it
        dv_ND = warpgroup_mma(p_a, do_MD, dv_ND, is_async=True)
        dp_NM = warpgroup_mma_wait(1, deps=[dp_NM])
        ds_NM = (p_NM * (dp_NM - delta_1M)).to(q_smem.dtype)
        dk_ND = warpgroup_mma(gl.convert_layout(ds_NM, a_layout), q_MD, dk_ND, is_async=True)
        following = (step + 1) % STAGES  # in the last step S is computed from stale data and not used
        mbarrier.wait(full.index(following), (step + 1) // STAGES & 1, pred=step + 1 < steps)
        next_q_MD = q_smem.index(following).reshape((BLOCK_M, D))
        s_NM = warpgroup_mma(k_a, next_q_MD.permute((1, 0)), no_s, use_acc=False, is_async=True)
        buffer = step % DS_STAGES
        mbarrier.wait(ds_empty.index(buffer), (step // DS_STAGES + 1) & 1)
        ds_smem.index(buffer).store(ds_NM)
        fence_async_shared()
        mbarrier.arrive(ds_full.index(buffer), count=1)
        dk_ND, dv_ND, s_NM = warpgroup_mma_wait(0, deps=[dk_ND, dv_ND, s_NM])
        mbarrier.arrive(empty.index(stage), count=1)
        m -= BLOCK_M
    return dk_ND, dv_ND


@gluon.jit
def fifth_product(given, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr):
    """Compute dQ, row and column sums of dS over all steps, in one warpgroup."""
    k_smem, ds_smem, kv_full, ds_full, ds_empty, turn, dq_ptr, rowsum_ptr, column_ptr, stop_ptr, n, first, Q, T = given
    m, steps = walk(stop_ptr, first, Q, BLOCK_M)
    mbarrier.wait(kv_full, 0)
    k_ND = k_smem.reshape((BLOCK_N, D))
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    # A warp reads 8 queries and all keys of the step, 8 keys at once without bank conflicts; then 8 more queries.
    by_query: gl.constexpr = gl.BlockedLayout([1, 2], [8, 4], [1, 4], [1, 0])
    by_key: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    no_dq = gl.zeros((BLOCK_M, D), gl.float32, layout=dq_layout)
    column_NL = _lanes(gl.zeros((BLOCK_N, BLOCK_M), gl.float32, layout=by_query))
    places = _places(dq_layout, BLOCK_M, D, 4)
    for step in range(steps):
        buffer = step % DS_STAGES
        mbarrier.wait(ds_full.index(buffer), step // DS_STAGES & 1)
        dq_MD = warpgroup_mma(ds_smem.index(buffer).permute((1, 0)), k_ND, no_dq, use_acc=False, is_async=True)
        ds_NM = ds_smem.index(buffer).load(by_query).to(gl.float32)
        column_NL += _lanes(ds_NM)
        row_M = gl.sum(ds_NM, 0)
        if ORDERED:
            mbarrier.wait(turn.index(buffer), step // DS_STAGES & 1)
        dq_MD = warpgroup_mma_wait(0, deps=[dq_MD])
        _add_row_sums(rowsum_ptr, row_M, m)
        _add_dq(dq_ptr, dq_MD, places, m, 4)
        mbarrier.arrive(ds_empty.index(buffer), count=1)  # after the sums, as it tells `pass_turns` that they are done
        m -= BLOCK_M
    keys_N = n + gl.arange(0, BLOCK_N, layout=by_key)
    gl.store(column_ptr + keys_N, gl.convert_layout(gl.sum(column_NL, 1), by_key), mask=keys_N < T)


@gluon.jit
def five_products(
    dk_ND, dv_ND, q_smem, k_ND, v_ND, do_smem, ds_smem, stat_smem, full, empty, turn, dq_ptr, rowsum_ptr, column_ptr,
    high, low, local_N, keys_N, begin, steps, whole, partial, scale2, Q, T, STAGES: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    """Compute dK, dV, dQ, row and column sums of dS. No product overlaps the next step, and little is preloaded: registers are
    scarce."""
    BLOCK_N: gl.constexpr = k_ND.shape[0]
    D: gl.constexpr = k_ND.shape[1]
    BLOCK_M: gl.constexpr = ds_smem.shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_M, 16])
    # Each warpgroup has all queries of a step and half of D.
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, D // 2, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, dk_ND.type.layout, 2)
    # Row sums of dS: a warp reads 8 queries and all keys of the step, 8 keys at once without bank conflicts.
    by_query: gl.constexpr = gl.BlockedLayout([1, 2], [8, 4], [1, 8], [1, 0])
    dtype: gl.constexpr = q_smem.dtype
    ROUND: gl.constexpr = _ROUND_BF16 if dtype == gl.bfloat16 else _ROUND_FP16
    no_s = gl.zeros((BLOCK_N, BLOCK_M), gl.float32, layout=s_layout)
    no_dq = gl.zeros((BLOCK_M, D), gl.float32, layout=dq_layout)
    column_N = gl.sum(no_s, 1)
    places = _places(dq_layout, BLOCK_M, D, 8)
    m = begin
    for step in range(steps):
        stage = step % STAGES
        q_MD = q_smem.index(stage).reshape((BLOCK_M, D))
        do_MD = do_smem.index(stage).reshape((BLOCK_M, D))
        stat_1M = stat_smem.index(stage)
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        shift_N = _shift(stat_1M, high, low) - local_N
        lse_1M = stat_1M.slice(0, BLOCK_M, dim=1).load(s_layout)  # written after the products, it would wait for them
        s_NM = warpgroup_mma(k_ND, q_MD.permute((1, 0)), no_s, use_acc=False, is_async=True)
        dp_NM = warpgroup_mma(v_ND, do_MD.permute((1, 0)), no_s, use_acc=False, is_async=True)
        s_NM = warpgroup_mma_wait(1, deps=[s_NM])
        p_NM = _weights(s_NM, stat_1M, lse_1M, shift_N, keys_N, m, whole, partial, scale2, T - Q)
        p_a = gl.convert_layout(p_NM.to(dtype), a_layout)
        dv_ND = warpgroup_mma(p_a, do_MD, dv_ND, is_async=True)
        dp_NM = warpgroup_mma_wait(1, deps=[dp_NM])
        delta_1M = stat_1M.slice(BLOCK_M, BLOCK_M, dim=1).load(s_layout)
        ds_NM = p_NM * (dp_NM - delta_1M)
        ds_low, ds_NM = gl.inline_asm_elementwise(ROUND, "=r,=f,=f,f,f", [ds_NM], (gl.int16, gl.float32), is_pure=True, pack=2)
        ds_low = ds_low.to(dtype, bitcast=True)
        ds_smem.index(0).store(ds_low)
        fence_async_shared()
        ds_a = gl.convert_layout(ds_low, a_layout)
        dq_MD = warpgroup_mma(ds_smem.index(0).permute((1, 0)), k_ND, no_dq, use_acc=False, is_async=True)
        dk_ND = warpgroup_mma(ds_a, q_MD, dk_ND, is_async=True)
        column_N += gl.sum(ds_NM, 1)
        dq_MD, dv_ND = warpgroup_mma_wait(1, deps=[dq_MD, dv_ND])
        if ORDERED:
            mbarrier.wait(turn.index(stage), step // STAGES & 1)
        _add_dq(dq_ptr, dq_MD, places, m, 8)
        _add_row_sums(rowsum_ptr, gl.sum(ds_smem.index(0).load(by_query).to(gl.float32), 0), m)
        dk_ND = warpgroup_mma_wait(0, deps=[dk_ND])
        mbarrier.arrive(empty.index(stage), count=1)
        m -= BLOCK_M
    gl.store(column_ptr + keys_N, column_N, mask=keys_N < T)
    return dk_ND, dv_ND
