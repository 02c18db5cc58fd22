"""Sums over a step's micro-batches whose bits do not depend on the number of processes: in a binary tree, halves while their
number is even, what is then left in its order. Each of 2, 4, 8 ... processes has a contiguous part, so a subtree."""

from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor, nn


def tree_sum(values: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape in the order of the tree; of two and three as they come."""
    half, odd = divmod(len(values), 2)
    return reduce(torch.add, values) if odd else tree_sum(values[:half]) + tree_sum(values[half:])


def in_tree(parameters: Sequence[nn.Parameter], parts: int) -> Iterator[int]:
    """Yield 0 to parts - 1, with a backward pass after each, and have their gradients added as `tree_sum` adds. A parameter's
    are added as soon as they are there, before DDP sends them, and log2(parts) - 1 of them are held at most beside `.grad`."""
    powers = parts & -parts  # of two, the largest that divides
    block = min(parts, max(parts // powers, 2))  # parts whose order is that in which .grad adds them
    held: dict[nn.Parameter, list[Tensor]] = {parameter: [] for parameter in parameters}
    part = 0

    def add(parameter: nn.Parameter) -> None:
        blocks, rest = divmod(part + 1, block)
        if rest:
            return
        assert parameter.grad is not None
        for _ in range((blocks & -blocks).bit_length() - 1):
            parameter.grad.add_(held[parameter].pop())
        if part + 1 < parts:
            held[parameter].append(parameter.grad)
            parameter.grad = None

    hooks = [parameter.register_post_accumulate_grad_hook(add) for parameter in parameters if block < parts]
    try:
        for part in range(parts):
            yield part
    finally:
        for hook in hooks:
            hook.remove()
    assert not any(held.values()), "a parameter had a gradient from some micro-batches only"
    for parameter in parameters:  # in DDP's buckets they can lie where a GPU's norm adds up in another order
        if parameter.grad is not None and parameter.grad.data_ptr() % 16:
            parameter.grad = parameter.grad.clone()
