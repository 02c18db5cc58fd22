"""Limits on the left of what a query sees that any operator takes: left padding and packed documents."""

import torch
from torch import Tensor


def first_key_within(batch: int, position_T: Tensor, seq_start_B: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """Find the first key of each position's document behind the padding, int32 (B, T), non-decreasing along T."""
    first_BT = torch.zeros_like(position_T).expand(batch, -1)
    if cu_seqlens is not None:
        boundaries = cu_seqlens.to(torch.int32).contiguous()
        document_T = torch.searchsorted(boundaries, position_T, right=True) - 1
        first_BT = torch.maximum(first_BT, boundaries[document_T.clamp(0, boundaries.numel() - 1)])
    if seq_start_B is not None:
        first_BT = torch.maximum(first_BT, seq_start_B.to(torch.int32)[:, None])
    return first_BT
