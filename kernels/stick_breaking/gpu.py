"""The custom operators `stick_breaking::triton_forward` and `::triton_backward` around the GPU kernels."""

import torch
from torch import Tensor

from .portable.backward import backward
from .portable.forward import forward
from .portable.tiles import GRAIN, plan_for
from .validation import check_values
from .visibility import first_visible_key


@torch.library.custom_op("stick_breaking::triton_forward", mutates_args=())
def triton_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq_start: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    attend_current: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Stick-breaking attention on checked arguments (see `stick_breaking_attention`).

    Returns output, remainder and the two tensors that the backward pass needs (see `triton_forward.forward`).
    """
    check_values(k.shape[1], seq_start, cu_seqlens)
    first_key = first_visible_key(q.shape[0], q.shape[1], k.shape[1], seq_start, cu_seqlens)
    return forward(q, k, v, first_key, scale, attend_current, plan_for(q.shape[-1], q.dtype, q.device).forward)


@torch.library.custom_op("stick_breaking::triton_backward", mutates_args=())
def _backward(
    do: Tensor,
    dremainder: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    remainder: Tensor,
    spent: Tensor,
    oldest: Tensor,
    seq_start: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    attend_current: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    first_key = first_visible_key(q.shape[0], q.shape[1], k.shape[1], seq_start, cu_seqlens)
    plan = plan_for(q.shape[-1], q.dtype, q.device)
    dremainder = dremainder.contiguous()
    return backward(do, dremainder, q, k, v, remainder, spent, oldest, first_key, scale, attend_current, plan)


@triton_attention.register_fake
def _(q, k, v, seq_start, cu_seqlens, scale, attend_current):  # type: ignore[no-untyped-def]
    B, Q, H, D = q.shape
    return (
        q.new_empty(B, Q, H, D),
        q.new_empty(B, Q, H, dtype=torch.float32),
        q.new_empty(B, H, Q, dtype=torch.float64),
        q.new_empty(B, H, (Q + GRAIN - 1) // GRAIN, dtype=torch.int32),
    )


@_backward.register_fake
def _(do, dremainder, q, k, v, *_):  # type: ignore[no-untyped-def]
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, seq_start, cu_seqlens, ctx.scale, ctx.attend_current = inputs
    ctx.save_for_backward(q, k, v, *output[1:], seq_start, cu_seqlens)


def _differentiate(ctx, do, dremainder, *_):  # type: ignore[no-untyped-def]
    grads = _backward(do, dremainder, *ctx.saved_tensors, ctx.scale, ctx.attend_current)
    return (*grads, *(None,) * 4)


triton_attention.register_autograd(_differentiate, setup_context=_save)
