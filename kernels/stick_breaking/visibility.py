"""Visible keys of each query, and where a row's stick is used up: what all backends share.

Left padding and packed documents hide a prefix of a query's keys: one integer per query, `first_key`. On the right it sees the
keys before its position, with `attend_current` its own too.

**Used-up sticks.** All weights of a row and its remainder add up to 1 (identity I9), so once the keys visited have left 2^-c of
the stick, whatever lies further back has 2^-c in all. The backends walk from the nearest key and stop a block of queries once
every row has c above `EXIT_BITS`: an output loses at most 2^-40 of the largest value, and a gradient added up over 65,536
queries less than an ulp of float32 of the largest summand. What was not visited counts as not there in all results."""

import torch
from torch import Tensor

from ..attention_shared.arguments import first_key_within

EXIT_BITS = {torch.float32: 40.0, torch.float64: 69.0}
"""Base-2 logarithm of the stick at which a row is used up, by the dtype of the sums: its digits and 16 more."""


def first_visible_key(
    batch: int, num_queries: int, num_keys: int, seq_start_B: Tensor | None, cu_seqlens: Tensor | None
) -> Tensor | None:
    """Find the index of the first key that each query sees, int32 (B, Q), non-decreasing along Q; None if all see the first."""
    limit = seq_start_B if seq_start_B is not None else cu_seqlens
    if limit is None:
        return None
    position_T = torch.arange(num_keys, device=limit.device, dtype=torch.int32)
    first_BT = first_key_within(batch, position_T, seq_start_B, cu_seqlens)
    return first_BT[:, num_keys - num_queries :].contiguous()
