"""Registration of the operator with autograd and torch.compile, for every backend: forward, saved tensors, backward. Direct
calls run the same code through an autograd.Function, as calling a custom operator takes 100 us."""

import functools

import torch
from torch import Tensor

from ..attention_shared.arguments import schema
from . import chunked
from .options import NAMESPACE, Backend, Options

_OPTIONS = schema(Options)


def _forward(q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, *options) -> tuple[Tensor, list[Tensor]]:  # type: ignore
    """Return the output and the other tensors that the backward pass needs."""
    return _named(options[-1]).forward(q, k, v, log_fgate, Options(*options))


def _backward(do, q, k, v, o, kept, scale, deterministic, backend, gate_dtype):  # type: ignore[no-untyped-def]
    """Return the gradients of q, k, v and the gates, contiguous."""
    dq, dk, dv, dgate = _named(backend).backward(do, q, k, v, o, kept, scale, deterministic)
    return dq, dk, dv, dgate.to(gate_dtype)


@functools.cache
def _named(backend: str) -> Backend:
    """Return a backend by its name."""
    if backend == "chunked":
        return chunked.BACKEND
    from . import gpu  # imports triton, which machines without a GPU need not have

    return gpu.BACKEND


attend = torch.library.custom_op(
    f"{NAMESPACE}::forward",
    _forward,
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor log_fgate, {_OPTIONS}) -> (Tensor, Tensor[])",
)
_differentiated = torch.library.custom_op(
    f"{NAMESPACE}::backward",
    _backward,
    mutates_args=(),
    schema="(Tensor do, Tensor q, Tensor k, Tensor v, Tensor o, Tensor[] kept, float scale, bool deterministic, str backend, "
    "ScalarType gate_dtype) -> (Tensor, Tensor, Tensor, Tensor)",
)


attend.register_fake(lambda q, k, v, log_fgate, *options: (q.new_empty(q.shape), _named(options[-1]).kept_like(q, k)))


@_differentiated.register_fake
def _(do, q, k, v, o, kept, scale, deterministic, backend, gate_dtype):  # type: ignore[no-untyped-def]
    gate_shape = (q.shape[0], k.shape[1], q.shape[2])
    return (*(x.new_empty(x.shape) for x in (q, k, v)), q.new_empty(gate_shape, dtype=gate_dtype))


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, log_fgate, *options = inputs
    o, kept = output
    ctx.save_for_backward(q, k, v, o, *kept)
    ctx.options = (*options[-3:], log_fgate.dtype)
    ctx.set_materialize_grads(False)


def _gradients(backward, ctx, do):  # type: ignore[no-untyped-def]
    """Return one gradient per argument of `attend`; `backward` is `_backward` or its operator."""
    if do is None:
        return (None,) * (4 + len(Options._fields))
    q, k, v, o, *kept = ctx.saved_tensors
    return (*backward(do, q, k, v, o, kept, *ctx.options), *(None,) * len(Options._fields))


attend.register_autograd(lambda ctx, do, _: _gradients(_differentiated, ctx, do), setup_context=_save)


class DirectAttention(torch.autograd.Function):
    """`attend(...)[0]`, without the operator's overhead."""

    @staticmethod
    def forward(ctx, *inputs):  # type: ignore[no-untyped-def]
        output = _forward(*inputs)
        _save(ctx, inputs, output)
        return output[0]

    @staticmethod
    def backward(ctx, do):  # type: ignore[no-untyped-def]
        if torch.is_grad_enabled():  # `once_differentiable` would not see it where the incoming gradient requires none
            raise RuntimeError("create_graph=True: the gradient has no gradient itself; that of backend 'reference' has.")
        return _gradients(_backward, ctx, do)
