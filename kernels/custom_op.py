"""Custom operators that are opaque to torch.compile, and whose gradients are custom operators too."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _like_first(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape)


def differentiable(name: str, forward: Callable, backward: Callable, count: int, like: Callable = _like_first) -> Any:
    """Register forward(*inputs) -> Tensor as an operator, and backward(dy, *inputs) -> list of tensors as its gradient.

    Args:
        name: the operator's name in the namespace `kernels`; the gradient operator's name ends in `_backward`.
        backward: returns the gradients of the first `count` inputs, leaving out inputs that are None.
        like: (*inputs) -> an empty tensor like the output; defaults to one like the first input, contiguous."""
    operator = torch.library.custom_op(f"kernels::{name}", forward, mutates_args=())
    gradient = torch.library.custom_op(f"kernels::{name}_backward", backward, mutates_args=())
    operator.register_fake(like)
    gradient.register_fake(lambda dy, *inputs: [x.new_empty(x.shape) for x in inputs[:count] if x is not None])

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.others = [None if isinstance(x, Tensor) else (x,) for x in inputs]

    def differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        tensors = iter(ctx.saved_tensors)
        inputs = [next(tensors) if other is None else other[0] for other in ctx.others]
        found = iter(gradient(dy, *inputs))
        return tuple(next(found) if i < count and x is not None else None for i, x in enumerate(inputs))

    operator.register_autograd(differentiate, setup_context=save)
    return operator
