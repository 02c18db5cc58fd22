"""Layout of the backends in plain PyTorch: batch and heads folded into one dimension, N = B * H."""

import torch
from torch import Tensor


def fold(x_BTHD: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
    """Fold (B, T, heads, D) -> contiguous (B * H, T, D), key heads repeated for grouped queries."""
    x_BHTD = x_BTHD.transpose(1, 2).to(dtype)
    if x_BHTD.shape[1] != num_heads:
        x_BHTD = x_BHTD.repeat_interleave(num_heads // x_BHTD.shape[1], dim=1)
    return x_BHTD.reshape(-1, *x_BHTD.shape[2:]).contiguous()


def unfold(x_NTD: Tensor, batch: int, heads: int, dtype: torch.dtype) -> Tensor:
    """Unfold (B * H, T, D) -> (B, T, heads, D); with fewer heads than H, summed over the queries' group."""
    N, T, D = x_NTD.shape
    return x_NTD.view(batch, heads, N // (batch * heads), T, D).sum(2).transpose(1, 2).to(dtype)
