"""Forgetting attention, written as in the paper: quadratic memory, any dtype, any device, gradients from autograd.

Legend: B batch, Q queries, T keys, H query heads, G = H / Hkv query heads per key head, D head dimension."""

import torch
from torch import Tensor

from .visibility import cumulative_log_gate, first_visible_key


def reference_attention(
    q_BQHD: Tensor,
    k_BTGD: Tensor,
    v_BTGD: Tensor,
    log_fgate_BTH: Tensor,
    *,
    scale: float | None = None,
    first_key_BHQ: Tensor | None = None,
) -> Tensor:
    """Compute O = softmax(scale * Q K^T + D) V with D_ij = sum of log f_s, s = j+1..i (the paper's section 3.2), causal.

    Matrix products run in the inputs' dtype, the softmax in float32 (float64 for float64 inputs), as eager attention does.
    `first_key` is the first key that each query sees (see `visibility`); by default only gates of zero limit it. Returns
    (B, Q, H, D)."""
    Q, H, D = q_BQHD.shape[1:]
    T, key_heads = k_BTGD.shape[1:3]
    scale = D**-0.5 if scale is None else scale
    if first_key_BHQ is None:
        first_key_BHQ = first_visible_key(log_fgate_BTH, Q)
    softmax_dtype = torch.promote_types(q_BQHD.dtype, torch.float32)

    q_BHQD = q_BQHD.transpose(1, 2)
    k_BHTD, v_BHTD = (x.transpose(1, 2).repeat_interleave(H // key_heads, dim=1) for x in (k_BTGD, v_BTGD))
    cum_BHT = cumulative_log_gate(log_fgate_BTH)
    decay_BHQT = (cum_BHT[..., T - Q :, None] - cum_BHT[..., None, :]).to(softmax_dtype)
    key_T = torch.arange(T, device=q_BQHD.device)
    query_Q1 = torch.arange(T - Q, T, device=q_BQHD.device)[:, None]
    visible_BHQT = (key_T <= query_Q1) & (key_T >= first_key_BHQ[..., None])

    logits_BHQT = (q_BHQD @ k_BHTD.transpose(-1, -2)).to(softmax_dtype) * scale + decay_BHQT
    logits_BHQT = logits_BHQT.masked_fill(~visible_BHQT, float("-inf"))
    # A padded query sees no key: the softmax of its row of -inf would be NaN; its output is set to 0.
    empty_BHQ1 = ~visible_BHQT.any(-1, keepdim=True)
    weights_BHQT = logits_BHQT.masked_fill(empty_BHQ1, 0.0).softmax(-1).masked_fill(empty_BHQ1, 0.0)
    return (weights_BHQT.to(v_BHTD.dtype) @ v_BHTD).transpose(1, 2)
