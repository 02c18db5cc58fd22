"""The custom operators around the backends: forward, what it keeps, backward."""

import os

import torch
from torch import Tensor

from ..attention_shared.validation import check_limit_values
from . import chunked
from .options import NAMESPACE, Backend, Options
from .visibility import first_visible_key

CHECK_VALUES_VARIABLE = "STICK_BREAKING_CHECK_VALUES"


def _named(backend: str) -> Backend:
    """Find a backend by its name."""
    if backend == "chunked":
        return chunked.BACKEND
    from . import gpu  # imports triton, which machines without a GPU need not have

    return gpu.BACKEND


@torch.library.custom_op(f"{NAMESPACE}::forward", mutates_args=())
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq_start: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    attend_current: bool,
    backend: str,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Stick-breaking attention on checked arguments: output, remainder, and what the backward pass needs besides."""
    # Here rather than in the public function, so that torch.compile need not look into it.
    options = Options(seq_start, cu_seqlens, scale, attend_current, backend)
    limit = seq_start if seq_start is not None else cu_seqlens
    if limit is not None and (not limit.is_cuda or os.environ.get(CHECK_VALUES_VARIABLE) == "1"):
        check_limit_values(k.shape[1], seq_start, cu_seqlens)
    return _named(backend).forward(q, k, v, _first_key(q, k, options), options)


@torch.library.custom_op(f"{NAMESPACE}::backward", mutates_args=())
def _backward(
    do: Tensor,
    dremainder: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    remainder: Tensor,
    kept: list[Tensor],
    seq_start: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    attend_current: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    options = Options(seq_start, cu_seqlens, scale, attend_current, backend)
    grads = _named(backend).backward(do, dremainder, q, k, v, remainder, kept, _first_key(q, k, options), options)
    dq, dk, dv = (x.contiguous() for x in grads)
    return dq, dk, dv


def _first_key(q: Tensor, k: Tensor, options: Options) -> Tensor | None:
    return first_visible_key(q.shape[0], q.shape[1], k.shape[1], options.seq_start, options.cu_seqlens)


@attend.register_fake
def _(q, k, v, *options):  # type: ignore[no-untyped-def]
    remainder = q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
    return q.new_empty(q.shape), remainder, _named(options[-1]).kept_like(q)


@_backward.register_fake
def _(do, dremainder, q, k, v, *_):  # type: ignore[no-untyped-def]
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, seq_start, cu_seqlens, *ctx.options = inputs
    _, remainder, kept = output
    ctx.save_for_backward(q, k, v, remainder, seq_start, cu_seqlens, *kept)


def _differentiate(ctx, do, dremainder, _):  # type: ignore[no-untyped-def]
    q, k, v, remainder, seq_start, cu_seqlens, *kept = ctx.saved_tensors
    grads = _backward(do, dremainder, q, k, v, remainder, kept, seq_start, cu_seqlens, *ctx.options)
    return (*grads, *(None,) * len(Options._fields))


attend.register_autograd(_differentiate, setup_context=_save)
