"""Gradients of gradients are refused, whatever the incoming gradient needs."""

import pytest
import torch

from kernels.forgetting_attention import forgetting_attention
from kernels.linear_cross_entropy import linear_cross_entropy
from kernels.selective_scan import selective_scan
from kernels.ssd import ssd


def rand(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(shape, generator=generator) for shape in shapes]


OUT = torch.rand(1, 3, 16)
OPERATORS = {
    "loss": (
        lambda *x: linear_cross_entropy(*x, torch.tensor([3, 0, 1])), rand((3, 16), (7, 16)),
    ),
    "Mamba-2": (
        lambda *x: ssd(*x[:4], -x[4], torch.ones(2))[0],
        rand((1, 3, 16), (1, 3, 16), (1, 3, 2, 16), (1, 3, 2), (1, 3, 2)),
    ),
    "Mamba": (  # `out` and `skip` are differentiated by PyTorch, as often as asked
        lambda *x: selective_scan(x[0], x[1], -x[2], x[3], OUT, torch.ones(4))[0],
        rand((1, 3, 4), (1, 3, 4), (4, 16), (1, 3, 16)),
    ),
    "attention": (lambda q, k, v, g: forgetting_attention(q, k, v, -g), rand(*[(1, 3, 1, 16)] * 3, (1, 3, 1))),
}  # fmt: skip


def differentiate_twice(function, loss, leaves, leaf) -> None:
    y = function(*leaves)
    (gradient,) = torch.autograd.grad(loss(y).sum(), leaf, create_graph=True)
    (y.sum() + gradient.square().sum()).backward(inputs=leaf)


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of_gradients_are_refused_and_not_wrong(name: str) -> None:
    """Of a loss whose gradient needs one itself, and of a sum."""
    function, inputs = OPERATORS[name]
    for loss in (torch.square, torch.clone):
        for i in range(len(inputs)):
            leaves = [x.clone().requires_grad_() for x in inputs]
            with pytest.raises(RuntimeError, match="has no gradient itself"):
                differentiate_twice(function, loss, leaves, leaves[i])
