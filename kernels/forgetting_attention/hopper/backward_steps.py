"""Steps of the warps in the Hopper backward pass: one tile of keys, its queries tile by tile.

The warps that hold the keys' gradients have S, dP, dV and dK, all transposed (keys down, queries across), so that P and dS feed
the next products straight from registers. Only dS also goes through shared memory, for dQ: at a head size of 64 to a warpgroup
that takes dQ and the sums of dS; at 128 there are no registers for that, and the warps of the keys do it themselves.

Row sums of dS are 0 only up to the rounding of O, and are kept (see `portable.backward`): of dS as it lies in shared memory,
like the column sums, so that what does not span a gate cancels exactly. dQ is added up in a float32 buffer in the order of the
registers: one 16-byte reduction per four numbers, neighbours side by side.

Legend: M queries of a step, N keys, D head dimension, L sums of a thread. `stat_1M` is what comes with a step's queries: lse,
delta, the bits of their first keys, and M numbers of which the first two add up to what lse is relative to."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

from ..visibility import TILE
from .turns import walk

DS_STAGES = gl.constexpr(2)  # of a warpgroup that takes dS from shared memory
_TILE = gl.constexpr(TILE)
_DQ_REGISTERS = gl.constexpr(32)  # of a thread: 64 x 64 over 4 warps, 64 x 128 over 8


def _reductions(warps: int) -> str:
    """All of a thread's registers of dQ, four in one reduction, those of all threads side by side. Of the addresses only the
    first is used: the others would be kept in registers, two each."""
    count = _DQ_REGISTERS.value
    values = [", ".join(f"${2 * count + i + j}" for j in range(4)) for i in range(0, count, 4)]
    adds = [f"red.relaxed.gpu.global.add.v4.f32 [${count} + {512 * warps * i}], {{{four}}};" for i, four in enumerate(values)]
    return "\n".join(["{", *adds, *(f"mov.b32 ${i}, 0;" for i in range(count)), "}"])


_ADD_4, _ADD_8 = gl.constexpr(_reductions(4)), gl.constexpr(_reductions(8))
_OF = gl.constexpr(",".join(x for x in ("=r", "l", "f") for _ in range(_DQ_REGISTERS.value)))

# Two numbers rounded to 16 bits, and what they have become in float32: one conversion for both.
_ROUND_BF16 = gl.constexpr("cvt.rn.bf16x2.f32 $0, $4, $3; shl.b32 $1, $0, 16; and.b32 $2, $0, 0xffff0000;")
_ROUND_FP16 = gl.constexpr("""
{
.reg .b16 l, h;
cvt.rn.f16x2.f32 $0, $4, $3; mov.b32 {l, h}, $0; cvt.f32.f16 $1, l; cvt.f32.f16 $2, h;
}
""")


@gluon.jit
def _shift(stat_1M, high, low):
    """c of the first query of a step's tile, what `lse` is relative to, less that before the tile of keys, `high` + `low`."""
    BLOCK_M: gl.constexpr = stat_1M.shape[1] // 4
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 8], [1, 0])
    ref_high = gl.max(gl.max(stat_1M.slice(3 * BLOCK_M, 1, dim=1).load(layout), 1), 0)
    ref_low = gl.max(gl.max(stat_1M.slice(3 * BLOCK_M + 1, 1, dim=1).load(layout), 1), 0)
    return (ref_high - high) + (ref_low - low)


@gluon.jit
def _weights(s_NM, stat_1M, lse_1M, shift_N, keys_N, m, whole, partial, scale2, offset):
    """P of a step. The decays first: both are large beside the diagonal and all but cancel. lse has seen every key: p <= 1."""
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
    """Return where a register of dQ goes, in bytes: registers of one thread four by four, threads side by side."""
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
    """Return what each of 4 warps' threads has of the column sums: to add the lanes up in each step would take longer."""
    return gl.sum(gl.sum(ds_NM.reshape((ds_NM.shape[0], ds_NM.shape[1] // 32, 16, 2)), 3), 1)


@gluon.jit
def four_products(
    dk_ND, dv_ND, q_smem, k_ND, v_ND, do_smem, ds_smem, stat_smem, full, empty, ds_full, ds_empty,
    high, low, local_N, keys_N, begin, steps, whole, partial, scale2, Q, T, STAGES: gl.constexpr,
):  # fmt: skip
    """dK and dV of all steps, with dS handed on. S of a step is begun in the step before, behind dK, and is there when the step
    begins: a product that is still under way from one step to the next makes ptxas wait after each.

    K is held in registers too, as shared memory is as busy as the tensor cores; for V there is no room."""
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
        delta_1M = stat_1M.slice(BLOCK_M, BLOCK_M, dim=1).load(s_layout)  # behind the wait it would come after it
        dv_ND = warpgroup_mma(p_a, do_MD, dv_ND, is_async=True)
        dp_NM = warpgroup_mma_wait(1, deps=[dp_NM])
        ds_NM = (p_NM * (dp_NM - delta_1M)).to(q_smem.dtype)
        dk_ND = warpgroup_mma(gl.convert_layout(ds_NM, a_layout), q_MD, dk_ND, is_async=True)
        following = (step + 1) % STAGES  # behind the last step it is of whatever lies there, for nothing
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
    """dQ, row and column sums of dS of all steps, by a warpgroup."""
    k_smem, ds_smem, kv_full, ds_full, ds_empty, turn, dq_ptr, rowsum_ptr, column_ptr, stop_ptr, n, first, Q, T = given
    m, steps = walk(stop_ptr, first, Q, BLOCK_M)
    mbarrier.wait(kv_full, 0)
    k_ND = k_smem.reshape((BLOCK_N, D))
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    # A warp takes 8 queries and all keys of the step, 8 keys at once without bank conflicts; then 8 queries more.
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
        mbarrier.arrive(ds_empty.index(buffer), count=1)  # behind the sums, as `pass_turns` takes them for done then
        m -= BLOCK_M
    keys_N = n + gl.arange(0, BLOCK_N, layout=by_key)
    gl.store(column_ptr + keys_N, gl.convert_layout(gl.sum(column_NL, 1), by_key), mask=keys_N < T)


@gluon.jit
def five_products(
    dk_ND, dv_ND, q_smem, k_ND, v_ND, do_smem, ds_smem, stat_smem, full, empty, turn, dq_ptr, rowsum_ptr, column_ptr,
    high, low, local_N, keys_N, begin, steps, whole, partial, scale2, Q, T, STAGES: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    """dK, dV, dQ, row and column sums of dS. No product reaches into the next step, and little is loaded: registers are few."""
    BLOCK_N: gl.constexpr = k_ND.shape[0]
    D: gl.constexpr = k_ND.shape[1]
    BLOCK_M: gl.constexpr = ds_smem.shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_M, 16])
    # Both warpgroups have all queries of a step, and half of D.
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, D // 2, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, dk_ND.type.layout, 2)
    # Row sums of dS: a warp takes 8 queries and all keys of the step, 8 keys at once without bank conflicts.
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
        lse_1M = stat_1M.slice(0, BLOCK_M, dim=1).load(s_layout)  # behind the products it would come after them
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
