"""Outputs and gradients of an operator beside those of its definition in float64."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

Operator = Callable[..., Any]


def on_both(cpu: Iterable[tuple[Any, ...]], gpu: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Cases for `parametrize` with the device in front; those of a GPU are marked."""
    marked = [pytest.param("cuda", *case, marks=pytest.mark.gpu) for case in gpu]
    return [pytest.param("cpu", *case) for case in cpu] + marked


def with_gradients(function: Operator, inputs: Sequence[Tensor | None]) -> list[Tensor]:
    """Outputs, then the gradients of the inputs that are not None.

    What arrives at an output are integers, which every dtype holds exactly, and does not lie in its order."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    generator = torch.Generator().manual_seed(1)
    arriving = [torch.randint(-9, 10, y.shape[::-1], generator=generator).to(y).permute(*range(y.dim())[::-1]) for y in outputs]
    gradients = torch.autograd.grad(outputs, [x for x in leaves if x is not None], arriving)
    return [y.detach() for y in (*outputs, *gradients)]


def in_nan(function: Operator, which: slice = slice(None)) -> Operator:
    """Call `function` with views of these inputs (B, T, ...) amid NaN: behind every row, and behind the rows of a sequence."""

    def amid(x: Tensor) -> Tensor:
        n = x.shape[-1]
        behind = (0, n, *(0, 0) * (x.dim() - 3), 0, 1) if x.dim() > 2 else (0, n)
        wide = torch.nn.functional.pad(x, behind, value=torch.nan)[..., :n]
        return wide[:, :-1] if x.dim() > 2 else wide

    def call(*inputs: Tensor | None, **options: Any) -> Any:
        chosen = range(len(inputs))[which]
        views = [amid(x) if i in chosen and x is not None else x for i, x in enumerate(inputs)]
        return function(*views, **options)

    return call


def errors(found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Norm of each difference over the norm; inf for what is not finite."""
    shares = []
    for x, y in zip(found, exact, strict=True):
        assert x.shape == y.shape
        error = ((x.double() - y.double()).norm() / y.double().norm().clamp(min=1e-3)).item()
        shares.append(error if bool(x.isfinite().all()) else float("inf"))
    return shares


def assert_exact(function: Operator, definition: Operator, inputs: Sequence[Tensor | None], tolerance: float) -> None:
    """Outputs and all gradients are within `tolerance` of those of the definition in float64."""
    found = with_gradients(function, inputs)
    doubles = [None if x is None else x.double() for x in inputs]
    off = errors(found, with_gradients(definition, doubles))
    assert max(off) < tolerance, off
