"""The custom operators `stick_breaking::chunked_forward` and `::chunked_backward` around the PyTorch path."""

import torch
from torch import Tensor

from .chunked import QUERY_BLOCK, chunked_backward, chunked_forward
from .validation import check_values
from .visibility import first_visible_key


@torch.library.custom_op("stick_breaking::chunked_forward", mutates_args=())
def chunked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq_start: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    attend_current: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Stick-breaking attention on checked arguments (see `stick_breaking_attention`).

    Returns output, remainder and the oldest key that each block of queries visited, int64 on the CPU.
    """
    # Here rather than in the public function, so that torch.compile need not look into it.
    check_values(k.shape[1], seq_start, cu_seqlens)
    first_key = first_visible_key(q.shape[0], q.shape[1], k.shape[1], seq_start, cu_seqlens)
    o, remainder, oldest = chunked_forward(q, k, v, first_key, scale, attend_current)
    return o.contiguous(), remainder.contiguous(), oldest


@torch.library.custom_op("stick_breaking::chunked_backward", mutates_args=())
def _backward(
    do: Tensor,
    dremainder: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    oldest: Tensor,
    seq_start: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    attend_current: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    first_key = first_visible_key(q.shape[0], q.shape[1], k.shape[1], seq_start, cu_seqlens)
    grads = chunked_backward(do, dremainder, q, k, v, oldest, first_key, scale, attend_current)
    dq, dk, dv = (x.contiguous() for x in grads)
    return dq, dk, dv


@chunked_attention.register_fake
def _(q, k, v, seq_start, cu_seqlens, scale, attend_current):  # type: ignore[no-untyped-def]
    B, Q, H, D = q.shape
    remainder = q.new_empty(B, Q, H, dtype=torch.promote_types(q.dtype, torch.float32))
    return q.new_empty(B, Q, H, D), remainder, torch.empty(-(-Q // QUERY_BLOCK), dtype=torch.int64)


@_backward.register_fake
def _(do, dremainder, q, k, v, oldest, seq_start, cu_seqlens, scale, attend_current):  # type: ignore[no-untyped-def]
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, seq_start, cu_seqlens, ctx.scale, ctx.attend_current = inputs
    ctx.save_for_backward(q, k, v, output[2], seq_start, cu_seqlens)


def _differentiate(ctx, do, dremainder, *_):  # type: ignore[no-untyped-def]
    grads = _backward(do, dremainder, *ctx.saved_tensors, ctx.scale, ctx.attend_current)
    return (*grads, *(None,) * 4)


chunked_attention.register_autograd(_differentiate, setup_context=_save)
