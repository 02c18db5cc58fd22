"""Registration of the operator with autograd and torch.compile, for every backend: forward, saved tensors, backward."""

import os
from typing import NamedTuple

import torch
from torch import Tensor

from ..attention_shared.arguments import check_limit_values, schema
from .chunked import QUERY_BLOCK, chunked_backward, chunked_forward
from .visibility import first_visible_key

NAMESPACE = __name__.rpartition(".")[0].replace(".", "_")
"""Namespace of the custom operators: copies of this package under other names do not collide."""
CHECK_VALUES_VARIABLE = "STICK_BREAKING_CHECK_VALUES"


class Options(NamedTuple):
    """See `stick_breaking_attention`. A tuple, because a custom operator takes its arguments one by one."""

    seq_start: Tensor | None
    cu_seqlens: Tensor | None
    scale: float
    attend_current: bool
    backend: str
    """Either "triton" or "chunked"."""


_OPTIONS = schema(Options)


def _forward(q: Tensor, k: Tensor, v: Tensor, *given):  # type: ignore[no-untyped-def]
    """Return output, remainder, and the other tensors that the backward pass needs."""
    options = Options(*given)
    limit = options.seq_start if options.seq_start is not None else options.cu_seqlens
    # Checked here rather than in the public function, so that torch.compile need not trace it.
    if limit is not None and (not limit.is_cuda or os.environ.get(CHECK_VALUES_VARIABLE) == "1"):
        check_limit_values(k.shape[1], options.seq_start, options.cu_seqlens)
    first_key = first_visible_key(q.shape[0], q.shape[1], k.shape[1], options.seq_start, options.cu_seqlens)
    if options.backend == "chunked":
        o, remainder, oldest = chunked_forward(q, k, v, first_key, options.scale, options.attend_current)
        return o.contiguous(), remainder.contiguous(), [oldest]
    # These import triton, which machines without a GPU need not have.
    from .portable.forward import forward
    from .portable.tiles import plan_for

    tiles = plan_for(q.shape[-1], q.dtype, q.device).forward
    o, remainder, *kept = forward(q, k, v, first_key, options.scale, options.attend_current, tiles)
    return o, remainder, kept


def _backward(do, dremainder, q, k, v, remainder, kept, *given):  # type: ignore[no-untyped-def]
    """Return the gradients of q, k and v, contiguous."""
    options = Options(*given)
    first_key = first_visible_key(q.shape[0], q.shape[1], k.shape[1], options.seq_start, options.cu_seqlens)
    rest = first_key, options.scale, options.attend_current
    if options.backend == "chunked":
        (oldest,) = kept
        return tuple(x.contiguous() for x in chunked_backward(do, dremainder, q, k, v, oldest, *rest))
    from .portable.backward import backward
    from .portable.tiles import plan_for

    plan = plan_for(q.shape[-1], q.dtype, q.device)
    spent, oldest = kept
    return backward(do, dremainder.contiguous(), q, k, v, remainder, spent, oldest, *rest, plan)


attend = torch.library.custom_op(
    f"{NAMESPACE}::forward",
    _forward,
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor, Tensor[])",
)
_differentiated = torch.library.custom_op(
    f"{NAMESPACE}::backward",
    _backward,
    mutates_args=(),
    schema="(Tensor do, Tensor dremainder, Tensor q, Tensor k, Tensor v, Tensor remainder, Tensor[] kept, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor)",
)


@attend.register_fake
def _(q, k, v, *given):  # type: ignore[no-untyped-def]
    B, Q, H, _ = q.shape
    remainder = q.new_empty(B, Q, H, dtype=torch.promote_types(q.dtype, torch.float32))
    if Options(*given).backend == "chunked":
        return q.new_empty(q.shape), remainder, [torch.empty(-(-Q // QUERY_BLOCK), dtype=torch.int64)]  # on the CPU
    from .portable.tiles import GRAIN

    oldest = q.new_empty(B, H, (Q + GRAIN - 1) // GRAIN, dtype=torch.int32)
    return q.new_empty(q.shape), remainder, [q.new_empty(B, H, Q, dtype=torch.float64), oldest]


_differentiated.register_fake(lambda do, dremainder, *inputs: tuple(x.new_empty(x.shape) for x in inputs[:3]))


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, seq_start, cu_seqlens, *ctx.options = inputs
    _, remainder, kept = output
    ctx.save_for_backward(q, k, v, remainder, seq_start, cu_seqlens, *kept)


def _differentiate(ctx, do, dremainder, _):  # type: ignore[no-untyped-def]
    q, k, v, remainder, seq_start, cu_seqlens, *kept = ctx.saved_tensors
    grads = _differentiated(do, dremainder, q, k, v, remainder, kept, seq_start, cu_seqlens, *ctx.options)
    return (*grads, *(None,) * len(Options._fields))


attend.register_autograd(_differentiate, setup_context=_save)
