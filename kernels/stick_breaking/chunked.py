"""Stick-breaking attention over blocks of queries in plain PyTorch: memory linear in the length, any device. The default on
CPUs.

Keys are stored from last to first, so that the sum over nearer keys is a running sum. Forward loops backwards over stretches of
keys of growing length until every row's stick is used up; backward processes all visited keys at once. With
G_ij = A_ij (dO_i . V_j), the gradient of log A_ij, that of the logits is dz_ij = G_ij - beta_ij (sum over j' <= j of G_ij' +
r_i dr_i): z_ij raises log A_ij itself and, through 1 - beta_ij, lowers by beta_ij the logs of A_ij, of all older weights and of
the remainder.

Legend: N = B * H (batch and heads folded), Q queries, T keys, D head dimension; R the queries of one block, J the keys of a
stretch, nearest first."""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..attention_shared.blocks import fold, unfold
from .visibility import EXIT_BITS

QUERY_BLOCK = 64
FIRST_STRETCH = 128


def _blocks(num_queries: int) -> list[slice]:
    """Split the queries into blocks."""
    return [slice(start, min(start + QUERY_BLOCK, num_queries)) for start in range(0, num_queries, QUERY_BLOCK)]


def _logits(q_NRD: Tensor, k_NJD: Tensor, keys: slice, limit_R: Tensor, first_key_NR: Tensor | None, scale: float) -> Tensor:
    """Compute scale * q k^T (N, R, J), nearest key first; -inf if masked: such a key takes nothing."""
    z_NRJ = torch.bmm(q_NRD, k_NJD.transpose(1, 2)).mul_(scale)
    partly = max(keys.stop - int(limit_R[0]), 0)  # keys that the block's first query does not see
    key_J = torch.arange(keys.stop - 1, keys.start - 1, -1, device=z_NRJ.device)
    z_NRJ[..., :partly].masked_fill_(key_J[:partly] >= limit_R[:, None], float("-inf"))
    if first_key_NR is not None and bool((first_key_NR > keys.start).any()):
        z_NRJ.masked_fill_(key_J < first_key_NR[..., None], float("-inf"))
    return z_NRJ


def _stick(z_NRJ: Tensor, spent_NR1: Tensor) -> Tensor:
    """Compute -log of the stick left before each key, nearest first, and after the last one: (N, R, J + 1)."""
    spent = torch.cat([spent_NR1, softplus(z_NRJ, threshold=50.0)], -1)
    return torch.cumsum(spent, -1, out=spent)


def chunked_forward(
    q_BQHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, first_key_BQ: Tensor | None, scale: float, attend_current: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output (B, Q, H, D) in q's dtype, remainder (B, Q, H), the oldest key that each block of queries visited."""
    B, Q, H, D = q_BQHD.shape
    T = k_BTGD.shape[1]
    dtype = torch.promote_types(q_BQHD.dtype, torch.float32)
    q_NQD, k_NTD, v_NTD = (fold(x, H, dtype) for x in (q_BQHD, k_BTGD, v_BTGD))
    k_NTD, v_NTD = k_NTD.flip(1), v_NTD.flip(1)
    first_key_NQ = None if first_key_BQ is None else first_key_BQ.repeat_interleave(H, 0)
    used_up = EXIT_BITS[dtype] * math.log(2.0)
    limit_Q = torch.arange(T - Q, T, device=q_NQD.device) + int(attend_current)
    o_NQD = torch.zeros_like(q_NQD)
    spent_NQ = q_NQD.new_zeros(B * H, Q)
    oldest = torch.zeros(-(-Q // QUERY_BLOCK), dtype=torch.int64)
    for block, rows in enumerate(_blocks(Q)):
        first_key_NR = None if first_key_NQ is None else first_key_NQ[:, rows]
        # first_key never decreases along the queries, so the block's first query has the smallest.
        start = 0 if first_key_NR is None else int(first_key_NR[:, 0].min())
        stop, length = int(limit_Q[rows.stop - 1]), FIRST_STRETCH
        spent_NR1 = spent_NQ[:, rows, None]
        while stop > start:
            keys = slice(max(stop - length, start), stop)
            there = slice(T - keys.stop, T - keys.start)  # the last key comes first
            z_NRJ = _logits(q_NQD[:, rows], k_NTD[:, there], keys, limit_Q[rows], first_key_NR, scale)
            stick_NRJ = _stick(z_NRJ, spent_NR1)
            spent_NR1 = stick_NRJ[..., -1:].clone()
            weights_NRJ = stick_NRJ[..., :-1].neg_().exp_().mul_(z_NRJ.sigmoid_())
            o_NQD[:, rows].baddbmm_(weights_NRJ, v_NTD[:, there])
            stop, length = keys.start, 2 * length
            alive_NR = spent_NR1[..., 0] <= used_up
            if first_key_NR is not None:
                alive_NR &= first_key_NR < stop
            if not bool(alive_NR.any()):
                break
        oldest[block] = stop
        spent_NQ[:, rows] = spent_NR1[..., 0]
    remainder_BQH = spent_NQ.neg_().exp_().view(B, H, Q).transpose(1, 2)
    return o_NQD.view(B, H, Q, D).transpose(1, 2).to(q_BQHD.dtype), remainder_BQH, oldest


def chunked_backward(
    do_BQHD: Tensor, dr_BQH: Tensor, q_BQHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, oldest: Tensor,
    first_key_BQ: Tensor | None, scale: float, attend_current: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k, v in their dtypes."""
    B, Q, H, D = q_BQHD.shape
    T, key_heads = k_BTGD.shape[1:3]
    dtype = torch.promote_types(q_BQHD.dtype, torch.float32)
    q_NQD, k_NTD, v_NTD, do_NQD = (fold(x, H, dtype) for x in (q_BQHD, k_BTGD, v_BTGD, do_BQHD))
    k_NTD, v_NTD = k_NTD.flip(1), v_NTD.flip(1)
    dr_NQ1 = dr_BQH.transpose(1, 2).reshape(B * H, Q, 1).to(dtype)
    first_key_NQ = None if first_key_BQ is None else first_key_BQ.repeat_interleave(H, 0)
    limit_Q = torch.arange(T - Q, T, device=q_NQD.device) + int(attend_current)
    dq_NQD, dk_NTD, dv_NTD = torch.zeros_like(q_NQD), torch.zeros_like(k_NTD), torch.zeros_like(v_NTD)
    for block, rows in enumerate(_blocks(Q)):
        keys = slice(int(oldest[block]), int(limit_Q[rows.stop - 1]))
        if keys.stop <= keys.start:
            continue
        there = slice(T - keys.stop, T - keys.start)  # the last key comes first
        q_NRD, do_NRD, k_NJD = q_NQD[:, rows], do_NQD[:, rows], k_NTD[:, there]
        first_key_NR = None if first_key_NQ is None else first_key_NQ[:, rows]
        z_NRJ = _logits(q_NRD, k_NJD, keys, limit_Q[rows], first_key_NR, scale)
        left_NRJ = _stick(z_NRJ, torch.zeros_like(z_NRJ[..., :1])).neg_().exp_()
        beta_NRJ = z_NRJ.sigmoid_()
        weights_NRJ = left_NRJ[..., :-1] * beta_NRJ
        dv_NTD[:, there].baddbmm_(weights_NRJ.transpose(1, 2), do_NRD)
        dlog_NRJ = weights_NRJ.mul_(torch.bmm(do_NRD, v_NTD[:, there].transpose(1, 2)))
        # Sums over each key and all older ones, accumulated from the oldest, where the terms are small.
        older_NRJ = dlog_NRJ.flip(-1)
        older_NRJ[..., :1] += left_NRJ[..., -1:] * dr_NQ1[:, rows]
        older_NRJ = torch.cumsum(older_NRJ, -1, out=older_NRJ).flip(-1)
        dz_NRJ = dlog_NRJ.sub_(beta_NRJ.mul_(older_NRJ))
        dq_NQD[:, rows] = torch.bmm(dz_NRJ, k_NJD).mul_(scale)
        dk_NTD[:, there].baddbmm_(dz_NRJ.transpose(1, 2), q_NRD, alpha=scale)
    dk_NTD, dv_NTD = dk_NTD.flip(1), dv_NTD.flip(1)
    return (
        dq_NQD.view(B, H, Q, D).transpose(1, 2).to(q_BQHD.dtype),
        unfold(dk_NTD, B, key_heads, k_BTGD.dtype),
        unfold(dv_NTD, B, key_heads, v_BTGD.dtype),
    )
