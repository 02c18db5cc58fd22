"""`kernels.ssd` for 16-bit inputs on a GPU: products within a chunk stay in registers, and one program loops over the heads
that share a result.

Forward: states of the chunks (`_states_kernel`), their scan, outputs. Backward: the same for the gradients, then the gradients
that heads share: those of the scores, and of q and k through the states, are summed over heads in registers. Some tiles have
keys as rows and queries as columns because Triton 3.4 to 3.7.0 miscompiles a product with a transposed result on Hopper.

Prefix sums of log gates are stored as two float32 numbers, high + low, for the precision of their differences (see
`kernels.ssd`).

Legend: C tokens of a chunk, N state size, P value channels, M keys or queries of a program."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ssd_chunks import scan, to_chunks

CHUNK = 128
ROWS = 64
SETTINGS = {
    "states": {"num_warps": 4, "num_stages": 1},
    "outputs": {"num_warps": 4, "num_stages": 1},
    "pairs": {"num_warps": 4, "num_stages": 2},
    "shared": {"num_warps": 8, "num_stages": 2},
}
PROGRAMS = 256  # enough to fill a GPU twice: heads are split over more programs until there are this many


@triton.jit(do_not_specialize=["T", "H"])
def _sums_kernel(g_ptr, high_ptr, low_ptr, stride_b, stride_t, stride_h, T, H, C: tl.constexpr):
    """Compute prefix sums of log gates within each chunk."""
    row = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * C + tl.arange(0, C)
    g = tl.load(g_ptr + row // H * stride_b + row % H * stride_h + t.to(tl.int64) * stride_t, mask=t < T, other=0.0)
    c = tl.cumsum(g.to(tl.float64), 0)
    high = c.to(tl.float32)
    tl.store(high_ptr + row * tl.num_programs(0) * C + t, high)
    tl.store(low_ptr + row * tl.num_programs(0) * C + t, (c - high.to(tl.float64)).to(tl.float32))


@triton.jit(do_not_specialize=["T", "H"])
def _states_kernel(
    a_ptr, y_ptr, step_ptr, high_ptr, low_ptr, out_ptr, a_stride_b, a_stride_t, y_stride_b, y_stride_t, y_stride_h, T, H,
    N: tl.constexpr, P: tl.constexpr, C: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Compute one chunk's update of a head's state: keys^T @ values decayed to the chunk's end. Backward: queries^T @ output
    gradients decayed from the chunk's start."""
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = row // H, row % H
    t = chunk * C + tl.arange(0, C)
    inside = (t < T)[:, None]
    n, p = tl.arange(0, N), tl.arange(0, P)
    at = t.to(tl.int64)[:, None]
    a_CN = tl.load(a_ptr + batch * a_stride_b + at * a_stride_t + n[None, :], mask=inside, other=0.0)
    y_CP = tl.load(y_ptr + batch * y_stride_b + at * y_stride_t + head * y_stride_h + p[None, :], mask=inside, other=0.0)
    sums = row * tl.num_programs(0) * C
    high, low = tl.load(high_ptr + sums + t), tl.load(low_ptr + sums + t)
    if BACKWARD:
        factor = tl.exp(high + low)
    else:
        last = sums + chunk * C + C - 1
        factor = tl.exp((tl.load(high_ptr + last) - high) + (tl.load(low_ptr + last) - low))
        factor *= tl.load(step_ptr + (batch * T + t) * H + head, mask=t < T, other=0.0)
    y_CP = (y_CP.to(tl.float32) * factor[:, None]).to(a_CN.dtype)
    out_NP = tl.dot(tl.trans(a_CN), y_CP)
    out = (batch * tl.num_programs(0) + chunk) * N + n
    tl.store(out_ptr + (out[:, None] * H + head) * P + p[None, :], out_NP)


@triton.jit(do_not_specialize=["T", "H"])
def _outputs_kernel(
    a_ptr, b_ptr, x_ptr, do_ptr, step_ptr, skip_ptr, high_ptr, low_ptr, states_ptr, out_ptr, dstep_ptr, dskip_ptr,
    a_stride_b, a_stride_t, b_stride_b, b_stride_t, x_stride_b, x_stride_t, x_stride_h, do_stride_b, do_stride_t, do_stride_h,
    T, H, N: tl.constexpr, P: tl.constexpr, C: tl.constexpr, M: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Compute o for M queries (a) of one head: from the keys (b) of their chunk, from the state before it, and skip * x.

    Backward, mirrored: dx and dstep of M keys (a), from the queries (b) of their chunk and the state gradient after it."""
    chunk, row = tl.program_id(0) // (C // M), tl.program_id(1).to(tl.int64)
    num_chunks = tl.num_programs(0) // (C // M)
    batch, head = row // H, row % H
    m = tl.program_id(0) * M + tl.arange(0, M)
    c = chunk * C + tl.arange(0, C)
    n, p = tl.arange(0, N), tl.arange(0, P)
    inside_M, inside_C = (m < T)[:, None], (c < T)[:, None]
    at_M, at_C = m.to(tl.int64)[:, None], c.to(tl.int64)[:, None]
    a_MN = tl.load(a_ptr + batch * a_stride_b + at_M * a_stride_t + n[None, :], mask=inside_M, other=0.0)
    b_CN = tl.load(b_ptr + batch * b_stride_b + at_C * b_stride_t + n[None, :], mask=inside_C, other=0.0)
    sums = row * num_chunks * C
    high_M, low_M = tl.load(high_ptr + sums + m), tl.load(low_ptr + sums + m)
    high_C, low_C = tl.load(high_ptr + sums + c), tl.load(low_ptr + sums + c)
    between_MC = (high_M[:, None] - high_C[None, :]) + (low_M[:, None] - low_C[None, :])
    x_ptr += batch * x_stride_b + head * x_stride_h
    at = (batch * T + m) * H + head
    if BACKWARD:
        do_ptr += batch * do_stride_b + head * do_stride_h
        y_CP = tl.load(do_ptr + at_C * do_stride_t + p[None, :], mask=inside_C, other=0.0)
        w_MC = tl.where(m[:, None] <= c[None, :], tl.dot(a_MN, tl.trans(b_CN)) * tl.exp(-between_MC), 0.0)
        end = sums + chunk * C + C - 1
        factor_M = tl.exp((tl.load(high_ptr + end) - high_M) + (tl.load(low_ptr + end) - low_M))
    else:
        x_CP = tl.load(x_ptr + at_C * x_stride_t + p[None, :], mask=inside_C, other=0.0)
        step_C = tl.load(step_ptr + (batch * T + c) * H + head, mask=c < T, other=0.0)
        y_CP = (x_CP.to(tl.float32) * step_C[:, None]).to(a_MN.dtype)
        w_MC = tl.where(m[:, None] >= c[None, :], tl.dot(a_MN, tl.trans(b_CN)) * tl.exp(between_MC), 0.0)
        factor_M = tl.exp(high_M + low_M)
    out_MP = tl.dot(w_MC.to(a_MN.dtype), y_CP)
    state = ((batch * num_chunks + chunk) * N + n)[:, None] * H + head
    out_MP += tl.dot(a_MN, tl.load(states_ptr + state * P + p[None, :])) * factor_M[:, None]
    x_MP = tl.load(x_ptr + at_M * x_stride_t + p[None, :], mask=inside_M, other=0.0).to(tl.float32)
    skip = tl.load(skip_ptr + head).to(tl.float32)
    if BACKWARD:
        do_MP = tl.load(do_ptr + at_M * do_stride_t + p[None, :], mask=inside_M, other=0.0).to(tl.float32)
        tl.store(dstep_ptr + at, tl.sum(out_MP * x_MP, 1), mask=m < T)
        tl.store(dskip_ptr + row * tl.num_programs(0) + tl.program_id(0), tl.sum(tl.sum(do_MP * x_MP, 1), 0))
        out_MP = out_MP * tl.load(step_ptr + at, mask=m < T, other=0.0)[:, None] + skip * do_MP
    else:
        out_MP += skip * x_MP
    tl.store(out_ptr + at[:, None] * P + p[None, :], out_MP.to(out_ptr.dtype.element_ty), mask=inside_M)


@triton.jit(do_not_specialize=["T", "H", "heads"])
def _pairs_kernel(
    q_ptr, k_ptr, x_ptr, do_ptr, step_ptr, high_ptr, low_ptr, dscores_ptr, query_ptr, key_ptr,
    q_stride_b, q_stride_t, k_stride_b, k_stride_t, x_stride_b, x_stride_t, x_stride_h, do_stride_b, do_stride_t, do_stride_h,
    T, H, heads, N: tl.constexpr, P: tl.constexpr, C: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the scores of M keys and the M queries of the same or the later half of a chunk, summed over a
    group of heads, and per head the contributions to the gates' gradient by query and by key."""
    pair, chunk = tl.program_id(0) % 3, tl.program_id(0) // 3
    num_chunks, rows = tl.num_programs(0) // 3, tl.num_programs(1) * heads
    groups = H // heads
    batch, group = (tl.program_id(1) // groups).to(tl.int64), tl.program_id(1) % groups
    m = tl.arange(0, M)
    j, i = pair // 2 * M + m, (pair + 1) // 2 * M + m  # in the chunk
    t_j, t_i = chunk * C + j, chunk * C + i
    n, p = tl.arange(0, N), tl.arange(0, P)
    inside_j, inside_i = (t_j < T)[:, None], (t_i < T)[:, None]
    at_j, at_i = t_j.to(tl.int64)[:, None], t_i.to(tl.int64)[:, None]
    k_MN = tl.load(k_ptr + batch * k_stride_b + at_j * k_stride_t + n[None, :], mask=inside_j, other=0.0)
    q_MN = tl.load(q_ptr + batch * q_stride_b + at_i * q_stride_t + n[None, :], mask=inside_i, other=0.0)
    scores_JI = tl.dot(k_MN, tl.trans(q_MN))
    dscores_JI = tl.zeros((M, M), tl.float32)
    for head in range(group * heads, (group + 1) * heads):
        row = batch * H + head
        sums = row * num_chunks * C
        high_j, low_j = tl.load(high_ptr + sums + t_j), tl.load(low_ptr + sums + t_j)
        high_i, low_i = tl.load(high_ptr + sums + t_i), tl.load(low_ptr + sums + t_i)
        x_JP = tl.load(
            x_ptr + batch * x_stride_b + head * x_stride_h + at_j * x_stride_t + p[None, :], mask=inside_j, other=0.0
        )
        step_j = tl.load(step_ptr + (batch * T + t_j) * H + head, mask=t_j < T, other=0.0)
        do_head = do_ptr + batch * do_stride_b + head * do_stride_h
        do_IP = tl.load(do_head + at_i * do_stride_t + p[None, :], mask=inside_i, other=0.0)
        v_JP = (x_JP.to(tl.float32) * step_j[:, None]).to(k_MN.dtype)
        decay_JI = tl.exp((high_i[None, :] - high_j[:, None]) + (low_i[None, :] - low_j[:, None]))
        dweights_JI = tl.where(j[:, None] <= i[None, :], tl.dot(v_JP, tl.trans(do_IP)) * decay_JI, 0.0)
        dscores_JI += dweights_JI
        # A token's weight on itself depends on no gate (see `kernels.ssd`).
        crossing_JI = tl.where(j[:, None] < i[None, :], dweights_JI * scores_JI, 0.0)
        out = ((pair * rows + row) * num_chunks + chunk) * M + m
        tl.store(query_ptr + out, tl.sum(crossing_JI, 0))
        tl.store(key_ptr + out, tl.sum(crossing_JI, 1))
    out = ((batch * groups + group) * num_chunks + chunk) * (C * C)
    tl.store(dscores_ptr + out + j[:, None] * C + i[None, :], dscores_JI)


@triton.jit(do_not_specialize=["T", "H", "heads"])
def _shared_kernel(
    a_ptr, y_ptr, step_ptr, high_ptr, low_ptr, states_ptr, others_ptr, da_ptr, token_ptr, through_ptr,
    a_stride_b, a_stride_t, y_stride_b, y_stride_t, y_stride_h, T, H, heads,
    N: tl.constexpr, P: tl.constexpr, C: tl.constexpr, M: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of M queries through the state before their chunk, summed over a group of heads, and per head each
    query's contribution to the gates' gradient. KEYS: the same for keys and the state after their chunk, and the contribution
    of the state that passes through the chunk."""
    chunk = tl.program_id(0) // (C // M)
    num_chunks = tl.num_programs(0) // (C // M)
    groups = H // heads
    batch, group = (tl.program_id(1) // groups).to(tl.int64), tl.program_id(1) % groups
    t = tl.program_id(0) * M + tl.arange(0, M)
    n, p = tl.arange(0, N), tl.arange(0, P)
    inside = (t < T)[:, None]
    at = t.to(tl.int64)[:, None]
    a_MN = tl.load(a_ptr + batch * a_stride_b + at * a_stride_t + n[None, :], mask=inside, other=0.0)
    da_MN = tl.zeros((M, N), tl.float32)
    for head in range(group * heads, (group + 1) * heads):
        sums = (batch * H + head) * num_chunks * C
        high, low = tl.load(high_ptr + sums + t), tl.load(low_ptr + sums + t)
        y_MP = tl.load(y_ptr + batch * y_stride_b + head * y_stride_h + at * y_stride_t + p[None, :], mask=inside, other=0.0)
        state = (((batch * num_chunks + chunk) * N + n)[:, None] * H + head) * P + p[None, :]
        state_NP = tl.load(states_ptr + state)
        if KEYS:
            end = sums + chunk * C + C - 1
            high_end, low_end = tl.load(high_ptr + end), tl.load(low_ptr + end)
            factor = tl.exp((high_end - high) + (low_end - low))
            factor *= tl.load(step_ptr + (batch * T + t) * H + head, mask=t < T, other=0.0)
            if tl.program_id(0) % (C // M) == 0:
                passing = state_NP.to(tl.float32) * tl.load(others_ptr + state).to(tl.float32)
                passing = tl.sum(tl.sum(passing, 1), 0) * tl.exp(high_end + low_end)
                tl.store(through_ptr + (batch * num_chunks + chunk) * H + head, passing)
        else:
            factor = tl.exp(high + low)
        y_MP = (y_MP.to(tl.float32) * factor[:, None]).to(a_MN.dtype)
        share_MN = tl.dot(y_MP, tl.trans(state_NP))
        da_MN += share_MN
        tl.store(token_ptr + sums + t, tl.sum(share_MN * a_MN.to(tl.float32), 1))
    out = (batch * groups + group) * num_chunks * C + t
    tl.store(da_ptr + out[:, None] * N + n[None, :], da_MN)


@triton.jit(do_not_specialize=["T", "H", "rows"])
def _gates_kernel(
    query_ptr, key_ptr, arriving_ptr, leaving_ptr, through_ptr, dg_ptr, T, H, rows, C: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """Sum up the gates' gradient: a gate scales all that flows from tokens before its own to its own token or later."""
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    num_chunks = tl.num_programs(0)
    batch, head = row // H, row % H
    m = tl.arange(0, C)
    t = chunk * C + m
    at = row * num_chunks * C + t
    arriving = tl.load(arriving_ptr + at).to(tl.float64)
    for pair in tl.static_range(3):
        out = ((pair * rows.to(tl.int64) + row) * num_chunks + chunk) * M + m % M
        arriving += tl.load(query_ptr + out, mask=m // M == (pair + 1) // 2, other=0.0)
        arriving -= tl.load(key_ptr + out, mask=m // M == pair // 2, other=0.0)
    leaving = tl.load(leaving_ptr + at).to(tl.float64)
    through = tl.load(through_ptr + (batch * num_chunks + chunk) * H + head)
    dg = tl.cumsum(arriving, 0, reverse=True) + tl.cumsum(leaving, 0) - leaving + through
    tl.store(dg_ptr + (batch * T + t) * H + head, dg.to(tl.float32), mask=t < T)


def forward(
    q: Tensor, k: Tensor, x: Tensor, step: Tensor, g: Tensor, skip: Tensor, initial: Tensor | None
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return the output (B, T, H, P), the final state (B, N, H, P), and the tensors that `backward` takes: the states before
    each chunk and the prefix sums of gates.

    q, k, x may have any strides except in the last dimension, which is contiguous; step is contiguous and float32."""
    B, T, H, P = x.shape
    chunks = triton.cdiv(T, CHUNK)
    high, low = (torch.empty(B, H, chunks, CHUNK, device=x.device, dtype=torch.float32) for _ in range(2))
    _sums_kernel[(chunks, B * H)](g, high, low, *g.stride(), T, H, C=CHUNK, num_warps=4)
    states, final = scan(_states(k, x, step, high, low, False), _chunk_decay(high, low), initial, x.dtype, reverse=False)
    o = torch.empty(B, T, H, P, device=x.device, dtype=x.dtype)
    _outputs(q, k, x, None, step, skip, high, low, states, o)
    return o, final, (states, high, low)


def _outputs(
    a: Tensor, b: Tensor, x: Tensor, do: Tensor | None, step: Tensor, skip: Tensor, high: Tensor, low: Tensor,
    states: Tensor, out: Tensor, dstep: Tensor | None = None, dskip: Tensor | None = None,
) -> None:  # fmt: skip
    T, H, P = x.shape[1:]
    do_strides = x.stride()[:3] if do is None else do.stride()[:3]
    _outputs_kernel[(high.shape[2] * (CHUNK // ROWS), high.shape[0] * H)](
        a, b, x, do, step, skip, high, low, states, out, dstep, dskip,
        *a.stride()[:2], *b.stride()[:2], *x.stride()[:3], *do_strides, T, H,
        N=a.shape[-1], P=P, C=CHUNK, M=ROWS, BACKWARD=do is not None, **SETTINGS["outputs"],
    )  # fmt: skip


def _exact_product(a: Tensor, b: Tensor) -> Tensor:
    """Compute a @ b (B, n, ., .) with a float32 result."""
    if not a.is_cuda:
        return a.float() @ b.float()
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out_dtype=torch.float32).unflatten(0, a.shape[:2])


def _chunk_decay(high: Tensor, low: Tensor) -> Tensor:
    return (high[..., -1] + low[..., -1]).exp().transpose(1, 2).contiguous()


def _states(a: Tensor, y: Tensor, step: Tensor, high: Tensor, low: Tensor, backward: bool) -> Tensor:
    B, T, H, P = y.shape
    chunks = high.shape[2]
    out = torch.empty(B, chunks, a.shape[-1], H, P, device=y.device, dtype=torch.float32)
    _states_kernel[(chunks, B * H)](
        a, y, step, high, low, out, *a.stride()[:2], *y.stride()[:3], T, H,
        N=a.shape[-1], P=P, C=CHUNK, BACKWARD=backward, **SETTINGS["states"],
    )  # fmt: skip
    return out


def backward(
    do: Tensor, dfinal: Tensor, q: Tensor, k: Tensor, x: Tensor, step: Tensor, skip: Tensor,
    states: Tensor, high: Tensor, low: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the gradients of q, k, x, step, g, skip and the initial state (B, N, H, P)."""
    B, T, H, P = x.shape
    N, chunks = q.shape[-1], high.shape[2]
    dstates, dinitial = scan(_states(q, do, step, high, low, True), _chunk_decay(high, low), dfinal, x.dtype, reverse=True)
    halves, groups = CHUNK // ROWS, 1
    while halves * chunks * B * groups < PROGRAMS and H % (2 * groups) == 0:
        groups *= 2

    def numbers(*shape: int) -> Tensor:
        return torch.empty(shape, device=x.device, dtype=torch.float32)

    dx = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    dstep, dg = numbers(B, T, H), numbers(B, T, H)
    dskip, through = numbers(B, H, chunks * halves), numbers(B, chunks, H)
    _outputs(k, q, x, do, step, skip, high, low, dstates, dx, dstep, dskip)
    dscores = torch.zeros(B, groups, chunks, CHUNK, CHUNK, device=x.device, dtype=torch.float32)
    query, key = numbers(3, B, H, chunks, ROWS), numbers(3, B, H, chunks, ROWS)
    _pairs_kernel[(chunks * 3, B * groups)](
        q, k, x, do, step, high, low, dscores, query, key,
        *q.stride()[:2], *k.stride()[:2], *x.stride()[:3], *do.stride()[:3], T, H, H // groups,
        N=N, P=P, C=CHUNK, M=ROWS, **SETTINGS["pairs"],
    )  # fmt: skip
    dq, dk = numbers(B, groups, chunks, CHUNK, N), numbers(B, groups, chunks, CHUNK, N)
    arriving, leaving = numbers(B, H, chunks, CHUNK), numbers(B, H, chunks, CHUNK)
    for a, y, mine, others, da, token, keys in (
        (q, do, states, dstates, dq, arriving, False), (k, x, dstates, states, dk, leaving, True)
    ):  # fmt: skip
        _shared_kernel[(chunks * halves, B * groups)](
            a, y, step, high, low, mine, others, da, token, through, *a.stride()[:2], *y.stride()[:3], T, H, H // groups,
            N=N, P=P, C=CHUNK, M=ROWS, KEYS=keys, **SETTINGS["shared"],
        )  # fmt: skip
    _gates_kernel[(chunks, B * H)](query, key, arriving, leaving, through, dg, T, H, B * H, C=CHUNK, M=ROWS, num_warps=4)
    # The part of dq and dk that comes from the scores, for all heads at once; keys are rows, queries columns.
    q_BnCN, k_BnCN = (to_chunks(y, CHUNK) for y in (q, k))
    dscores_BnCC = dscores.sum(1).to(q.dtype)
    dq = _exact_product(dscores_BnCC.mT, k_BnCN) + dq.sum(1)
    dk = _exact_product(dscores_BnCC, q_BnCN) + dk.sum(1)
    dq, dk = (y.flatten(1, 2)[:, :T].to(q.dtype) for y in (dq, dk))
    return dq, dk, dx, dstep, dg, dskip.sum((0, 2)), dinitial
