"""Visible keys of each query, and the point at which a row's stick is used up, for all backends.

Left padding and packed documents mask a prefix of a query's keys: one integer per query, `first_key`. On the right a query sees
the keys before its position, with `attend_current` its own too.

**Used-up sticks.** All weights of a row and its remainder sum to 1 (identity I9), so once the visited keys have left 2^-c of
the stick, all older keys and the remainder have 2^-c together. The backends start at the nearest key and stop a block of
queries once every row has c above `EXIT_BITS`: an output loses at most 2^-40 of the largest value, and a gradient summed over
65,536 queries less than a float32 ulp of the largest summand. All results treat keys that were not visited as absent."""

import torch
from torch import Tensor

from ..attention_shared.arguments import first_key_within

EXIT_BITS = {torch.float32: 40.0, torch.float64: 69.0}
"""-log2 of the stick that is left when a row counts as used up, by the dtype of the sums: its mantissa bits plus 16."""


def first_visible_key(
    batch: int, num_queries: int, num_keys: int, seq_start_B: Tensor | None, cu_seqlens: Tensor | None
) -> Tensor | None:
    """Return the first key that each query sees, int32 (B, Q), non-decreasing along Q; None if all queries see the first."""
    limit = seq_start_B if seq_start_B is not None else cu_seqlens
    if limit is None:
        return None
    position_T = torch.arange(num_keys, device=limit.device, dtype=torch.int32)
    first_BT = first_key_within(batch, position_T, seq_start_B, cu_seqlens)
    return first_BT[:, num_keys - num_queries :].contiguous()
