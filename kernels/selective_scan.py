"""Mamba's recurrence, the selective scan (arXiv 2312.00752, eq. 2 and algorithm 2): every channel has a state of N numbers, and
every channel and token a step size dt:

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t        y_t = C_t h_t + D x_t

On a GPU it runs in `kernels.selective_scan_triton`, whose states stay in registers; elsewhere in PyTorch, segment by segment.

Suffixes: B batch, T tokens, C channels, N states per channel. The papers' B, C and D are called `into`, `out` and `skip`."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kernels.once_differentiable import once_differentiable
from kernels.selective_scan_triton import backward, forward

SEGMENT_NUMBERS = 2**25
"""Elements of the states h (B, T, C, N) that are in memory at a time on a CPU."""


@torch.compiler.disable
def selective_scan(
    x_BTC: Tensor, dt_BTC: Tensor, A_CN: Tensor, into_BTN: Tensor, out_BTN: Tensor, skip_C: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return y of x's shape and dtype, and the final h (B, C * N) in at least fp32, which is passed as `state` to continue.
    dt >= 0 and A <= 0; all arithmetic is in at least fp32, on a GPU in fp32. Differentiable in all inputs."""
    inputs = (x_BTC, dt_BTC, A_CN, into_BTN, out_BTN, skip_C, state)
    with torch.autocast("cpu" if x_BTC.is_meta else x_BTC.device.type, enabled=False):
        if not x_BTC.is_cuda:
            return _segments(*inputs)
        return _Kernels.apply(*inputs) if torch.is_grad_enabled() else forward(*inputs, keep=False)[:2]


class _Kernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        y, last, starts = forward(*inputs, keep=True)
        ctx.save_for_backward(*inputs[:-1], starts)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *gradients, dinitial = backward(dy, dlast, *ctx.saved_tensors)
        return *gradients, dinitial if ctx.needs_input_grad[-1] else None


def _segments(
    x: Tensor, dt: Tensor, A: Tensor, into: Tensor, out: Tensor, skip: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Process one segment at a time, as the states of all tokens would not fit; backward recomputes each segment's states."""
    B, T, _ = x.shape
    dtype = torch.promote_types(x.dtype, torch.float32)
    wide, dt, into, out = (tensor.to(dtype) for tensor in (x, dt, into, out))
    if state is None:
        state = wide.new_zeros(B, A.numel())
    segment = max(1, SEGMENT_NUMBERS // (B * A.numel()))
    outputs = []
    for parts in zip(*(tensor.split(segment, 1) for tensor in (wide, dt, into, out)), strict=True):
        if torch.is_grad_enabled() and segment < T:
            y, state = checkpoint(_segment, A, state, *parts, use_reentrant=False, preserve_rng_state=False)
        else:
            y, state = _segment(A, state, *parts)
        outputs.append(y)
    return (torch.cat(outputs, 1) + wide * skip).to(x.dtype), state


def _segment(A: Tensor, state: Tensor, x: Tensor, dt: Tensor, into: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    exponents = (dt[..., None] * A).flatten(2)
    inputs = ((dt * x)[..., None] * into[:, :, None]).flatten(2)
    h = _Diagonal.apply(inputs, exponents, state)
    return (h.unflatten(2, A.shape) @ out[..., None]).squeeze(-1), h[:, -1].clone()


class _Diagonal(torch.autograd.Function):
    """Recurrence h_t = exp(g_t) h_{t-1} + x_t, token by token: cheaper on a CPU than a parallel scan."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, state: Tensor) -> Tensor:
        decay, h = g.exp(), torch.empty_like(x)
        before = state
        for t in range(x.shape[1]):
            before = torch.addcmul(x[:, t], decay[:, t], before, out=h[:, t])
        ctx.save_for_backward(decay, h, state)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, h, state = ctx.saved_tensors
        dx = torch.empty_like(h)
        after = torch.zeros_like(state)
        for t in reversed(range(h.shape[1])):
            after = torch.add(grads[0][:, t], after, out=dx[:, t]) * decay[:, t]
        dg = dx * decay
        dg[:, 1:] *= h[:, :-1]
        dg[:, 0] *= state
        return dx, dg, after
