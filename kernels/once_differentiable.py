"""A guard for gradients that cannot be differentiated again."""

import functools
from collections.abc import Callable
from typing import Any

import torch


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward pass of a `torch.autograd.Function` so that it raises under create_graph=True.

    PyTorch's decorator raises only if that graph is used and the incoming gradient requires grad, which that of a sum does not:
    a gradient penalty would be dropped silently, or computed as if the saved tensors did not depend on the inputs."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            name = backward.__qualname__.removesuffix(".backward")
            raise RuntimeError(f"create_graph=True: the gradient of {backward.__module__}.{name} has no gradient itself.")
        return backward(ctx, *grads)

    return wrapped
