"""Gradients of gradients are refused, whatever the incoming gradient needs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import linear_cross_entropy, selective_scan, ssd

RANDOM = torch.Generator().manual_seed(0)
TARGETS = torch.tensor([3, 0, 1])
CROSS_ENTROPY = [torch.rand(shape, generator=RANDOM) for shape in ((3, 16), (7, 16))]
SSD = [torch.rand(shape, generator=RANDOM) for shape in ((1, 3, 16), (1, 3, 16), (1, 3, 2, 16), (1, 3, 2), (1, 3, 2))]
SCAN = [torch.rand(shape, generator=RANDOM) for shape in ((1, 3, 4), (1, 3, 4), (4, 16), (1, 3, 16), (1, 3, 16))]
for negative in (SSD[4], SCAN[2]):
    negative.neg_()


def refuses(function: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """Ask for a graph of the gradient of each input: of a loss whose gradient needs one itself, and of a sum."""
    for loss in (torch.square, torch.clone):
        for i in range(len(inputs)):
            leaves = [x.clone().requires_grad_() for x in inputs]
            with pytest.raises(RuntimeError, match="create_graph=True: the gradient of kernels"):
                torch.autograd.grad(loss(function(*leaves)).sum(), leaves[i], create_graph=True)


def refuse_by_kernels() -> None:
    """Run the functions that take Triton's kernels; called where these are interpreted."""
    from kernels.linear_cross_entropy_triton import FusedLinearCrossEntropy

    for keep in (0, 1):
        refuses(lambda *given: FusedLinearCrossEntropy.apply(*given, TARGETS, 64, keep), CROSS_ENTROPY)  # noqa: B023
    refuses(lambda *given: ssd._Kernels.apply(*given, torch.ones(2), None)[0], SSD)
    refuses(lambda *given: selective_scan._Kernels.apply(*given, torch.ones(4), None)[0], SCAN)


def test_cross_entropy() -> None:
    refuses(lambda *given: linear_cross_entropy.linear_cross_entropy(*given, TARGETS), CROSS_ENTROPY)


def test_mamba_2s_recurrence() -> None:
    refuses(lambda *given: ssd.ssd(*given, torch.ones(2))[0], SSD)


def test_selective_scan() -> None:
    """But for `out` and `skip`, which PyTorch differentiates by itself, as often as asked."""
    refuses(lambda *given: selective_scan.selective_scan(*given, SCAN[4], torch.ones(4))[0], SCAN[:4])
