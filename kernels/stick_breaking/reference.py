"""Stick-breaking attention, written as in the paper: quadratic memory, any dtype, any device, gradients from autograd.

Legend: B batch, Q queries, T keys, H query heads, G = H / Hkv query heads per key head, D head dimension."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def reference_attention(
    q_BQHD: Tensor,
    k_BTGD: Tensor,
    v_BTGD: Tensor,
    *,
    scale: float | None = None,
    attend_current: bool = False,
    first_key_BQ: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute o_i = sum over j of A_ij v_j, with log A_ij = log beta_ij + sum over j < k < i of log(1 - beta_ik), beta =
    sigmoid(scale * Q K^T), and the remainder r_i = prod over j of (1 - beta_ij) (the paper's section 2).

    Keys j < i, or j <= i with `attend_current`, and not before `first_key` (see `visibility`). Matrix products run in the
    inputs' dtype, sums along a row in float32 (float64 for float64 inputs). Returns (B, Q, H, D) and (B, Q, H)."""
    Q, H, D = q_BQHD.shape[1:]
    T, key_heads = k_BTGD.shape[1:3]
    scale = D**-0.5 if scale is None else scale
    sum_dtype = torch.promote_types(q_BQHD.dtype, torch.float32)

    q_BHQD = q_BQHD.transpose(1, 2)
    k_BHTD, v_BHTD = (x.transpose(1, 2).repeat_interleave(H // key_heads, dim=1) for x in (k_BTGD, v_BTGD))
    key_T = torch.arange(T, device=q_BQHD.device)
    query_Q1 = torch.arange(T - Q, T, device=q_BQHD.device)[:, None]
    visible = key_T <= query_Q1 if attend_current else key_T < query_Q1
    if first_key_BQ is not None:
        visible = visible & (key_T >= first_key_BQ[:, None, :, None])

    logits_BHQT = (q_BHQD @ k_BHTD.transpose(-1, -2)).to(sum_dtype) * scale
    log_left_BHQT = logsigmoid(-logits_BHQT).masked_fill(~visible, 0.0)  # log of what each key leaves
    # Summed over the nearer keys only: subtracting a key's own term from the inclusive sum would lose digits.
    nearer_BHQT = log_left_BHQT[..., 1:].flip(-1).cumsum(-1).flip(-1)
    nearer_BHQT = torch.nn.functional.pad(nearer_BHQT, (0, 1))
    weights_BHQT = (logsigmoid(logits_BHQT) + nearer_BHQT).masked_fill(~visible, float("-inf")).exp()
    remainder_BHQ = log_left_BHQT.sum(-1).exp()
    return (weights_BHQT.to(v_BHTD.dtype) @ v_BHTD).transpose(1, 2), remainder_BHQ.transpose(1, 2)
