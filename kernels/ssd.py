"""Mamba-2's recurrence in its chunked form (SSD, arXiv 2405.21060, section 6), with a step size, one decay per head and token,
and keys and queries shared by all heads:

    S_t = exp(g_t) S_{t-1} + k_t (step_t x_t)^T        o_t = S_t^T q_t + skip * x_t

All work is in batched matrix products: chunks interact through their states (N, P) per head, tokens within a chunk through
q k^T, computed once for all heads, times each head's decay. Exponents are sums of log gates, hence <= 0; the sums are fp64, as
a chunk can accumulate thousands of nats. A token's weight on itself is left out of the gates' gradient: with very local gates
its rounding would swamp the other weights. This is the PyTorch version, for any dtype, and the reference of
`kernels.ssd_triton`, which takes 16-bit inputs on a GPU.

Suffixes: B batch, T tokens, H heads, N state size (keys), P value channels; n chunks, C tokens of a chunk."""

from typing import Any

import torch
from torch import Tensor

from kernels.once_differentiable import once_differentiable
from kernels.ssd_chunks import scan, to_chunks
from kernels.ssd_triton import backward, forward

CHUNK = 64
FUSED = (128, 64)
"""N and P of every Mamba-2 here, for which `kernels.ssd_triton` and its machine code were verified on an H200. With (64, 32)
the assembler of Triton 3.6 and 3.7 loses the location of an operand: `strays` in tests/kernels/sass.py detects that."""


@torch.compiler.disable
def ssd(
    q: Tensor, k: Tensor, x: Tensor, step: Tensor, log_decay: Tensor, skip: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run the recurrence on q, k (B, T, N), x (B, T, H, P), step and log_decay <= 0 (B, T, H) in at least fp32, skip (H,) and
    state (B, H, N, P). Return o of x's shape and dtype, and the final state in at least fp32. Differentiable in all inputs."""
    with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
        if x.shape[1] == 1 and not torch.is_grad_enabled():
            return _one_token(q, k, x, step, log_decay, skip, initial_state)
        if not (x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and (q.shape[-1], x.shape[-1]) == FUSED):
            v = (x * step[..., None]).to(x.dtype)
            o, final = _Chunks.apply(q, k, v, log_decay, initial_state)
            return (o + x * skip[:, None]).to(x.dtype), final
        return _Kernels.apply(q, k, x, step, log_decay, skip, initial_state)


def _one_token(
    q: Tensor, k: Tensor, x: Tensor, step: Tensor, g: Tensor, skip: Tensor, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute one decoding step of the recurrence."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    state = k[:, 0, None, :, None].to(dtype) * (x * step[..., None]).to(dtype)[:, 0, :, None]
    if initial is not None:
        state = state + initial * g.to(dtype).exp()[:, 0, :, None, None]
    o = (q[:, :, None].to(dtype) @ state)[:, :, 0]
    return (o[:, None] + x * skip[:, None]).to(x.dtype), state


class _Kernels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, x: Tensor, step: Tensor, g: Tensor, skip: Tensor, initial: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        q, k, x = (y if y.stride(-1) == 1 else y.contiguous() for y in (q, k, x))
        step = step.contiguous()
        start = None if initial is None else initial.transpose(1, 2).float()
        o, final, kept = forward(q, k, x, step, g, skip, start)
        ctx.save_for_backward(q, k, x, step, skip, *kept)
        return o, final.transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        do = do if do.stride(-1) == 1 else do.contiguous()
        *gradients, dinitial = backward(do, dfinal.transpose(1, 2).float(), *ctx.saved_tensors)
        return *gradients, dinitial.transpose(1, 2) if ctx.needs_input_grad[-1] else None


class _Chunks(torch.autograd.Function):
    """Chunked recurrence on v = step * x, without the skip."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.shape, ctx.dtypes = v.shape, (q.dtype, k.dtype, v.dtype, g.dtype)
        size = min(CHUNK, 1 << (v.shape[1] - 1).bit_length())
        dtype = torch.promote_types(v.dtype, torch.float32)
        q, k, v = (to_chunks(y.to(dtype), size) for y in (q, k, v))
        g = to_chunks(g.double(), size)
        c = _triangle(g) @ g
        start = None if initial is None else initial.transpose(1, 2).to(dtype)
        update = (k.mT @ (v * _to_end(c, v)).flatten(-2)).unflatten(-1, v.shape[-2:])
        states, final = scan(update, c[:, :, -1].exp().to(dtype), start, dtype, reverse=False)
        ctx.save_for_backward(q, k, v, c, states, initial)
        inside = (_weights(q @ k.mT, c) @ v.transpose(2, 3)).transpose(2, 3)
        o = inside + (q @ states.flatten(-2)).view_as(v) * _from_start(c, v)
        return _unchunked(o, ctx.shape).to(ctx.dtypes[2]), final.transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, c, states, initial = ctx.saved_tensors
        do = to_chunks(do.to(v.dtype), v.shape[2])
        # Earlier chunks contribute through the state before this one, later chunks through the gradient of the state after it.
        do_start, v_end = do * _from_start(c, v), v * _to_end(c, v)
        dupdate = (q.mT @ do_start.flatten(-2)).unflatten(-1, v.shape[-2:])
        dfinal = dfinal.transpose(1, 2).to(v.dtype)
        dstates, dinitial = scan(dupdate, c[:, :, -1].exp().to(v.dtype), dfinal, v.dtype, reverse=True)
        do_HCP, v_HCP = do.transpose(2, 3), v.transpose(2, 3)
        scores = q @ k.mT
        weights, dweights = _weights(scores, c), do_HCP @ v_HCP.mT
        dscores = (dweights * _decay(c, scores)).sum(2)
        dq = dscores @ k + do_start.flatten(-2) @ states.flatten(-2).mT
        dk = dscores.mT @ q + v_end.flatten(-2) @ dstates.flatten(-2).mT
        onward = (k @ dstates.flatten(-2)).view_as(v) * _to_end(c, v)
        dv = (weights.mT @ do_HCP).transpose(2, 3) + onward
        # A gate scales all that flows from tokens before its own to its own token or later.
        pairs = (weights * dweights).tril(-1)
        carried = (q @ states.flatten(-2)).view_as(v) * do_start
        arriving = (pairs.sum(-1) - pairs.sum(-2)).mT + carried.sum(-1)
        leaving = (onward * v).sum(-1)
        through = (states * dstates).sum((2, 4)) * c[:, :, -1].exp()
        dg = _triangle(arriving).mT @ arriving.double() + _triangle(leaving, -1) @ leaving.double() + through[:, :, None]
        grads = (_unchunked(y, ctx.shape).to(dtype) for y, dtype in zip((dq, dk, dv, dg), ctx.dtypes, strict=True))
        return *grads, None if initial is None else dinitial.transpose(1, 2).to(initial.dtype)


def _unchunked(y: Tensor, shape: torch.Size) -> Tensor:
    return y.flatten(1, 2)[:, : shape[1]]


def _triangle(y_BnCH: Tensor, diagonal: int = 0) -> Tensor:
    """Return the matrix whose product is a prefix sum over tokens: the summation order of `cumsum` varies on a GPU."""
    return torch.ones(y_BnCH.shape[2], y_BnCH.shape[2], dtype=torch.float64, device=y_BnCH.device).tril(diagonal)


def _decay(c_BnCH: Tensor, like: Tensor) -> Tensor:
    """Compute exp(c_i - c_j) for i >= j, else 0: (B, n, H, C, C)."""
    c = c_BnCH.mT.contiguous()  # the result inherits its strides
    later = torch.ones(c.shape[-1], c.shape[-1], dtype=torch.bool, device=c.device).triu(1)
    return (c[..., :, None] - c[..., None, :]).to(like.dtype).masked_fill(later, -torch.inf).exp()


def _weights(scores_BnCC: Tensor, c: Tensor) -> Tensor:
    """Compute the weights of each token of a chunk on itself and earlier ones, (B, n, H, C, C)."""
    return scores_BnCC[:, :, None] * _decay(c, scores_BnCC)


def _to_end(c: Tensor, like: Tensor) -> Tensor:
    """Compute the decay from each token to the end of its chunk, (B, n, C, H, 1)."""
    return (c[:, :, -1:] - c).to(like.dtype).exp()[..., None]


def _from_start(c: Tensor, like: Tensor) -> Tensor:
    return c.to(like.dtype).exp()[..., None]
