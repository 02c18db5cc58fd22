"""Gradients that have none themselves."""

import functools
from collections.abc import Callable
from typing import Any

import torch


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse to make a graph of the gradients, for the backward pass of a `torch.autograd.Function`.

    PyTorch's decorator refuses only where that graph is used and the incoming gradient needs one itself. A sum's needs none: a
    gradient penalty would be left out, or computed as if what forward kept did not depend on the inputs."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            name = backward.__qualname__.removesuffix(".backward")
            raise RuntimeError(f"create_graph=True: the gradient of {backward.__module__}.{name} has no gradient itself.")
        return backward(ctx, *grads)

    return wrapped
