"""Running sums that are bit-for-bit reproducible: the summation order of `cumsum` varies on a GPU."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad


def running_sums(x_BTH: Tensor, before_B1H: Tensor | None = None) -> Tensor:
    """Return the inclusive sums over tokens, (B, T, H) in float64, continuing from the previous token's sums, if any."""
    B, T, H = x_BTH.shape
    if T == 1 and before_B1H is not None:
        return before_B1H + x_BTH
    tile = math.isqrt(max(T, 1) - 1) + 1  # matrix products with ones, tile by tile
    x_BHNN = pad(x_BTH.transpose(1, 2).double(), (0, tile * tile - T)).view(B, H, tile, tile)
    ones_NN = torch.ones(tile, tile, dtype=torch.float64, device=x_BTH.device).triu()
    sums_BHNN = x_BHNN @ ones_NN
    sums_BHNN = sums_BHNN + (sums_BHNN[..., -1] @ ones_NN.triu(1))[..., None]
    sums = sums_BHNN.flatten(2)[..., :T].transpose(1, 2)
    return sums if before_B1H is None else before_B1H + sums
