"""Forgetting attention with unmodified softmax attention: the sums of the gates are in extra channels of queries and keys.

The query's sum times one, and one times minus the key's sum, add the decay to the product. In 16 bits a sum is split into three
parts, whose rounding error is that of float32; the gradient flows through the first."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

PARTS, MORE = 3, 8
"""Parts of a sum, and extra channels: kernels take multiples of eight."""


def channels_attention(
    q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, softmax: Callable[[Tensor, Tensor, Tensor, float], Tensor]
) -> Tensor:
    """Compute attention of q, k, v (B, T, H, D) with log gates (B, T, H) by `softmax(q, k, v, scale)`, causal attention of
    (B, T, H, D + 8)."""
    D = q.shape[-1]
    sums_BTH = log_fgate.double().cumsum(1)
    parts = [sums_BTH.to(q.dtype)]
    while len(parts) < PARTS:
        parts.append((sums_BTH.detach() - sum(part.detach().double() for part in parts)).to(q.dtype))
    sums_BTHP = torch.stack(parts, -1)
    ones_BTHP, rest = torch.ones_like(sums_BTHP), (0, MORE - 2 * PARTS)
    wide_q = F.pad(torch.cat([q * D**-0.5, sums_BTHP, ones_BTHP], -1), rest)
    wide_k = F.pad(torch.cat([k, ones_BTHP, -sums_BTHP], -1), rest)
    return softmax(wide_q, wide_k, F.pad(v, (0, MORE)), 1.0)[..., :D]
