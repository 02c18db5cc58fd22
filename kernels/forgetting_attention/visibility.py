"""Visible keys of each query and decay of each key: the two inputs that all paths share.

Every limit on how far back a query sees (left padding, packed documents, a sliding window, a gate of exactly zero, adaptive
computation pruning) drops a *prefix* of its keys, which never gets shorter for later queries. So one integer per query,
`first_key`, represents all of them, and causality is the limit on the right. The decay is the cumulative log gate `cum`, kept
in float64: a float32 sum over 65,536 tokens has an error of several 1e-3 in the exponent.

Shapes: B batch, T keys, Q queries (aligned to the end of the keys), H query heads."""

import torch
from torch import Tensor

from ..attention_shared.arguments import first_key_within

TILE = 128
"""Pruning granularity: queries and keys of one tile. Kernels step by a divisor of it."""

CUT_LOG_GATE = -2000.0
"""A log gate below this cuts the sequence exactly like -inf: float64's exp is 0 below -745, so the two only differ if logits
are more than 1200 apart, and in a cumulative sum such a gate would swallow the digits of its neighbours."""


def cumulative_log_gate(log_fgate_BTH: Tensor) -> Tensor:
    """Compute c_t = sum of log f_s, s <= t (the paper's section 3.2), float64 (B, H, T). Cuts, in `first_key`, count as 0."""
    gate_BHT = log_fgate_BTH.transpose(1, 2).double()
    return gate_BHT.masked_fill(gate_BHT < CUT_LOG_GATE, 0.0).cumsum(-1)


def first_visible_key(
    log_fgate_BTH: Tensor,
    num_queries: int,
    seq_start_B: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    window_size: int | None = None,
) -> Tensor:
    """Return the index of the first key that each query sees, int32 (B, H, Q), non-decreasing along Q.

    A value above the query's own position means that it sees nothing (a padded query): its output is 0."""
    B, T, _ = log_fgate_BTH.shape
    position_T = torch.arange(T, device=log_fgate_BTH.device, dtype=torch.int32)
    is_cut_BHT = log_fgate_BTH.transpose(1, 2) < CUT_LOG_GATE
    first_BHT = torch.where(is_cut_BHT, position_T, 0).cummax(-1).values
    first_BHT = torch.maximum(first_BHT, first_key_within(B, position_T, seq_start_B, cu_seqlens)[:, None])
    if window_size is not None:
        first_BHT = torch.maximum(first_BHT, position_T - (min(window_size, T) - 1))  # a larger one would overflow int32
    return first_BHT[..., T - num_queries :].to(torch.int32).contiguous()
