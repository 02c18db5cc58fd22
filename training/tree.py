"""Sums over a step's micro-batches whose bits do not depend on the number of processes: a binary tree halves them while their
number is even, and the rest is added in sequence. Each of 2, 4, 8 ... processes has a contiguous part, so a subtree."""

from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor, nn


def tree_sum(values: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape, added in the order of the tree."""
    half, odd = divmod(len(values), 2)
    return reduce(torch.add, values) if odd else tree_sum(values[:half]) + tree_sum(values[half:])


def in_tree(parameters: Sequence[nn.Parameter], parts: int) -> Iterator[int]:
    """Yield 0 to parts - 1, for a backward pass after each, and add their gradients in the order of `tree_sum`. Each gradient
    is added as soon as it is there, before DDP sends it; at most log2(parts) - 1 per parameter are held beside `.grad`."""
    powers = parts & -parts  # the largest power of two that divides `parts`
    block = min(parts, max(parts // powers, 2))  # parts that .grad adds up in sequence, as the tree does
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
    for parameter in parameters:  # a GPU's norm adds a misaligned gradient (in DDP's buckets) in another order
        if parameter.grad is not None and parameter.grad.data_ptr() % 16:
            parameter.grad = parameter.grad.clone()
