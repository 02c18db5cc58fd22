"""`kernels.selective_scan` on a GPU: states stay in registers, forward and backward are one pass over the tokens each.

A program processes a few channels of one sequence over all tokens, STEPS at a time: first all loads, which depend on nothing,
then the unrolled steps. Forward stores the state before every STEPS tokens; backward recomputes those in between and runs from
the last chunk to the first. Gradients that channels share (of `into` and `out`) are summed per program, then by PyTorch: the
summation order is fixed.

A program is one warp, and a thread holds four states of each of two channels, adjacent in memory: a sum over 16 states shuffles
with three other lanes, a sum over channels with seven, and no warp waits for another. `tl.associative_scan` does not return the
state before a step, and to scan backwards it reverses its operands by shuffles between lanes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

STEPS = 8
"""Tokens that are loaded at once; the state before them is stored for the backward pass: C * N / STEPS float32 per token."""
SETTINGS = {"forward": {"BLOCK": 8, "num_warps": 1}, "backward": {"BLOCK": 16, "num_warps": 1}}
"""BLOCK: channels of a program, two per thread, as many as fit in the registers. The partial sums of backward's programs take
2 * C * N / BLOCK float32 per token."""
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def _load_steps(ptr, at, inside, stride_b, stride_t: tl.constexpr, batch, first, T, STEPS: tl.constexpr):
    """Load the rows of STEPS tokens from `first` on, zero past the end."""
    ptr += batch * stride_b + first * stride_t
    rows = ()
    for i in tl.static_range(STEPS):
        row = tl.load(ptr + i * stride_t + at, mask=inside & (first + i < T), other=0.0)
        rows += (row.to(tl.float32),)  # type: ignore[assignment]
    return rows


@triton.jit(do_not_specialize=["T"])
def _selective_scan_forward_kernel(
    x_ptr, dt_ptr, A_ptr, into_ptr, out_ptr, skip_ptr, initial_ptr, y_ptr, last_ptr, starts_ptr,
    T, x_stride_b, dt_stride_b, into_stride_b, out_stride_b,
    x_stride_t: tl.constexpr, dt_stride_t: tl.constexpr, into_stride_t: tl.constexpr, out_stride_t: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, STATES: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    c, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, STATES)
    inside_c, inside_n = c < C, n < N
    inside, state = inside_c[:, None] & inside_n[None, :], c[:, None] * N + n[None, :]
    rate = tl.load(A_ptr + state, mask=inside, other=0.0).to(tl.float32) * LOG2_E
    skip = tl.load(skip_ptr + c, mask=inside_c, other=0.0).to(tl.float32)
    h = tl.zeros((BLOCK, STATES), tl.float32)
    if initial_ptr is not None:
        h = tl.load(initial_ptr + batch * C * N + state, mask=inside, other=0.0)
    chunks = tl.cdiv(T, STEPS)
    for chunk in range(chunks):
        if starts_ptr is not None:
            tl.store(starts_ptr + (batch * chunks + chunk) * C * N + state, h, mask=inside)
        first = tl.cast(chunk * STEPS, tl.int64)
        x = _load_steps(x_ptr, c, inside_c, x_stride_b, x_stride_t, batch, first, T, STEPS)
        dt = _load_steps(dt_ptr, c, inside_c, dt_stride_b, dt_stride_t, batch, first, T, STEPS)
        into = _load_steps(into_ptr, n, inside_n, into_stride_b, into_stride_t, batch, first, T, STEPS)
        out = _load_steps(out_ptr, n, inside_n, out_stride_b, out_stride_t, batch, first, T, STEPS)
        row = y_ptr + (batch * T + first) * C + c
        for i in tl.static_range(STEPS):
            h = tl.exp2(dt[i][:, None] * rate) * h + (dt[i] * x[i])[:, None] * into[i][None, :]
            y = tl.sum(h * out[i][None, :], 1) + skip * x[i]
            tl.store(row + i * C, y.to(y_ptr.dtype.element_ty), mask=inside_c & (first + i < T))
    tl.store(last_ptr + batch * C * N + state, h, mask=inside)


@triton.jit(do_not_specialize=["T"])
def _selective_scan_backward_kernel(
    dy_ptr, dlast_ptr, x_ptr, dt_ptr, A_ptr, into_ptr, out_ptr, skip_ptr, starts_ptr,
    dx_ptr, ddt_ptr, dA_ptr, dinto_ptr, dout_ptr, dskip_ptr, dinitial_ptr,
    T, x_stride_b, dt_stride_b, into_stride_b, out_stride_b,
    x_stride_t: tl.constexpr, dt_stride_t: tl.constexpr, into_stride_t: tl.constexpr, out_stride_t: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, STATES: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    block, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    c, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, STATES)
    inside_c, inside_n = c < C, n < N
    inside, state = inside_c[:, None] & inside_n[None, :], c[:, None] * N + n[None, :]
    rate = tl.load(A_ptr + state, mask=inside, other=0.0).to(tl.float32) * LOG2_E
    skip = tl.load(skip_ptr + c, mask=inside_c, other=0.0).to(tl.float32)
    dh = tl.load(dlast_ptr + batch * C * N + state, mask=inside, other=0.0)
    dA = tl.zeros((BLOCK, STATES), tl.float32)
    dskip = tl.zeros((BLOCK,), tl.float32)
    step = tl.arange(0, STEPS)
    chunks = tl.cdiv(T, STEPS)
    for later in range(chunks):
        chunk = chunks - 1 - later
        h = tl.load(starts_ptr + (batch * chunks + chunk) * C * N + state, mask=inside, other=0.0)
        first = tl.cast(chunk * STEPS, tl.int64)
        x = _load_steps(x_ptr, c, inside_c, x_stride_b, x_stride_t, batch, first, T, STEPS)
        dt = _load_steps(dt_ptr, c, inside_c, dt_stride_b, dt_stride_t, batch, first, T, STEPS)
        dy = _load_steps(dy_ptr, c, inside_c, T * C, C, batch, first, T, STEPS)
        into = _load_steps(into_ptr, n, inside_n, into_stride_b, into_stride_t, batch, first, T, STEPS)
        out = _load_steps(out_ptr, n, inside_n, out_stride_b, out_stride_t, batch, first, T, STEPS)
        shared = ((block * tl.num_programs(1) + batch) * T + first) * N + step[:, None] * N + n[None, :]
        inside_shared = inside_n[None, :] & (first + step < T)[:, None]
        arriving = ()  # the states before each token, decayed
        dout = tl.zeros((STEPS, STATES), tl.float32)
        for i in tl.static_range(STEPS):
            h *= tl.exp2(dt[i][:, None] * rate)
            arriving += (h,)  # type: ignore[assignment]
            h += (dt[i] * x[i])[:, None] * into[i][None, :]
            dout = tl.where(step[:, None] == i, tl.sum(h * dy[i][:, None], 0)[None, :], dout)
        tl.store(dout_ptr + shared, dout, mask=inside_shared)
        # dt is reloaded so that the decays are recomputed: keeping them would take more registers than there are.
        dt = _load_steps(dt_ptr, c, inside_c, dt_stride_b, dt_stride_t, batch, first, T, STEPS)
        row = (batch * T + first) * C + c
        dinto = tl.zeros((STEPS, STATES), tl.float32)
        for i in tl.static_range(STEPS - 1, -1, -1):
            dh += out[i][None, :] * dy[i][:, None]
            dinto = tl.where(step[:, None] == i, tl.sum(dh * (dt[i] * x[i])[:, None], 0)[None, :], dinto)
            dinput = tl.sum(dh * into[i][None, :], 1)
            dexponent = dh * arriving[i]
            dx = dt[i] * dinput + skip * dy[i]
            ddt = x[i] * dinput + tl.sum(dexponent * rate, 1) * LN_2
            tl.store(dx_ptr + row + i * C, dx.to(dx_ptr.dtype.element_ty), mask=inside_c & (first + i < T))
            tl.store(ddt_ptr + row + i * C, ddt.to(ddt_ptr.dtype.element_ty), mask=inside_c & (first + i < T))
            dA += dexponent * dt[i][:, None]
            dskip += dy[i] * x[i]
            dh *= tl.exp2(dt[i][:, None] * rate)
        tl.store(dinto_ptr + shared, dinto, mask=inside_shared)
    tl.store(dA_ptr + batch * C * N + state, dA, mask=inside)
    tl.store(dskip_ptr + batch * C + c, dskip, mask=inside_c)
    tl.store(dinitial_ptr + batch * C * N + state, dh, mask=inside)


def forward(
    x: Tensor, dt: Tensor, A: Tensor, into: Tensor, out: Tensor, skip: Tensor, initial: Tensor | None, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return y (B, T, C), the final state (B, C * N), and if `keep` the states before every STEPS tokens, for `backward`."""
    x, dt, into, out = (_rows(tensor) for tensor in (x, dt, into, out))
    (B, T, C), N = x.shape, A.shape[1]
    y = torch.empty(B, T, C, device=x.device, dtype=x.dtype)
    last = torch.empty(B, A.numel(), device=x.device, dtype=torch.float32)
    starts = last.new_empty(B, triton.cdiv(T, STEPS), A.numel()) if keep else None
    _selective_scan_forward_kernel[(triton.cdiv(C, SETTINGS["forward"]["BLOCK"]), B)](
        x, dt, A.contiguous(), into, out, skip.contiguous(), None if initial is None else initial.float().contiguous(),
        y, last, starts, T, *_strides(x, dt, into, out), C, N,
        STATES=triton.next_power_of_2(N), STEPS=STEPS, **SETTINGS["forward"],
    )  # fmt: skip
    return y, last, starts


def backward(
    dy: Tensor, dlast: Tensor, x: Tensor, dt: Tensor, A: Tensor, into: Tensor, out: Tensor, skip: Tensor, starts: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of x, dt, A, into, out, skip and the initial state (B, C * N)."""
    x, dt, into, out = (_rows(tensor) for tensor in (x, dt, into, out))
    (B, T, C), N = x.shape, A.shape[1]
    programs = triton.cdiv(C, SETTINGS["backward"]["BLOCK"])

    def numbers(*shape: int) -> Tensor:
        return torch.empty(shape, device=x.device, dtype=torch.float32)

    dx = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    ddt = torch.empty(dt.shape, device=x.device, dtype=dt.dtype)
    dA, dskip, dinitial = numbers(B, C, N), numbers(B, C), numbers(B, C * N)
    dinto, dout = numbers(programs, B, T, N), numbers(programs, B, T, N)
    _selective_scan_backward_kernel[(programs, B)](
        dy.contiguous(), dlast.contiguous(), x, dt, A.contiguous(), into, out, skip.contiguous(), starts,
        dx, ddt, dA, dinto, dout, dskip, dinitial,
        T, *_strides(x, dt, into, out), C, N,
        STATES=triton.next_power_of_2(N), STEPS=STEPS, **SETTINGS["backward"],
    )  # fmt: skip
    dinto, dout = dinto.sum(0).to(into.dtype), dout.sum(0).to(out.dtype)
    return dx, ddt, dA.sum(0).to(A.dtype), dinto, dout, dskip.sum(0).to(skip.dtype), dinitial


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    """Return the strides between sequences and between tokens."""
    return [tensor.stride(dimension) for dimension in (0, 1) for tensor in tensors]
