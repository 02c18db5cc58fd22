"""Tight pruning: skips more tiles than adaptive computation pruning, with the same guarantee on each row's probability.

ACP (`threshold`) knows of the logits only that they are within +-U: it assumes that the kept ones are -U and that all keys lie
just below the threshold. Here the kept weight is computed from the newest keys, and the decays of all keys of a prefix are
summed. With c the cumulative log gate, dropping the keys before tile n costs row i at most a share of

    exp(U + c_i + G_n) / Z_i,    G_n = log sum of exp(-c_j) over these keys,    Z_i >= sum of exp(s_ij + c_i - c_j)

over the newest visible keys: those of its half tile up to itself, and of the half tile before. A query tile drops the longest
prefix of tiles that costs each of its rows, and each later row, less than the tolerance: a prefix that never gets shorter for
later tiles, and that contains all that ACP drops.

Suffixes: B batch, H heads, Q queries, T keys, D head dimension, R blocks of half a tile, M query tiles, N key tiles."""

import torch
from torch import Tensor

from ..visibility import TILE

MARGIN = 1e-3
"""Safety margin below the tolerance, in nats, for the rounding errors of logits of hundreds of nats."""


def tight_tiles(
    q_BQHD: Tensor, k_BTGD: Tensor, cum_BHT: Tensor, first_key_BHQ: Tensor, scale: float, log_tolerance: float, tile: int = TILE
) -> Tensor:
    """Count the leading key tiles that each query tile may skip, int32 (B, H, M); arguments as in `chunked_forward`."""
    _, Q, H, _ = q_BQHD.shape
    T, key_heads = k_BTGD.shape[1:3]
    dtype = torch.promote_types(q_BQHD.dtype, torch.float32)
    q_BHQD = q_BQHD.detach().transpose(1, 2).to(dtype)
    k_BHTD = k_BTGD.detach().transpose(1, 2).to(dtype).repeat_interleave(H // key_heads, dim=1)
    kept_BHQ = _kept(q_BHQD, k_BHTD, cum_BHT, first_key_BHQ, scale, max(tile // 2, 1))
    q_norm_BHQ = torch.linalg.vector_norm(q_BHQD, dim=-1).double()

    # Over each query tile and all later ones: the smallest kept weight and the largest |q|. Over each key tile and all earlier
    # ones: the summed decay and the largest |k|.
    need_BHM = _by_tile(kept_BHQ, tile, torch.inf).amin(-1).flip(-1).cummin(-1).values.flip(-1)
    q_norm_BHM = _by_tile(q_norm_BHQ, tile, 0.0).amax(-1).flip(-1).cummax(-1).values.flip(-1)
    left_BHN = _by_tile(-cum_BHT, tile, -torch.inf).logsumexp(-1).logcumsumexp(-1)
    k_norm_BHN = _by_tile(torch.linalg.vector_norm(k_BHTD, dim=-1).double(), tile, 0.0).amax(-1).cummax(-1).values
    bound_BHMN = abs(scale) * q_norm_BHM[..., None] * k_norm_BHN[..., None, :]
    dropped_BHMN = left_BHN[..., None, :] + bound_BHMN < (need_BHM + (log_tolerance - MARGIN))[..., None]
    own_M = (torch.arange(0, Q, tile, device=q_BQHD.device) + (T - Q)) // tile
    return torch.minimum(dropped_BHMN.sum(-1), own_M).to(torch.int32)


def _by_tile(x_BHT: Tensor, tile: int, beyond: float) -> Tensor:
    missing = -x_BHT.shape[-1] % tile
    return torch.nn.functional.pad(x_BHT, (0, missing), value=beyond).unflatten(-1, (-1, tile))


def _kept(q_BHQD: Tensor, k_BHTD: Tensor, cum_BHT: Tensor, first_key_BHQ: Tensor, scale: float, half: int) -> Tensor:
    """Return the log-sum-exp of s_ij - c_j over the newest keys, float64 (B, H, Q); +inf for a row that sees nothing."""
    Q, T = q_BHQD.shape[2], k_BHTD.shape[2]
    missing = -Q % half
    q_BHRID = torch.nn.functional.pad(q_BHQD, (0, 0, 0, missing)).unflatten(2, (-1, half))
    position_RI = torch.arange(Q + missing, device=q_BHQD.device).view(-1, half) + (T - Q)
    key_RJ = position_RI[:, :1] + torch.arange(-half, half, device=q_BHQD.device)
    inside_RJ = key_RJ.clamp(0, T - 1)
    k_BHRJD, cum_BHRJ = k_BHTD[:, :, inside_RJ], cum_BHT[:, :, inside_RJ]
    logits_BHRIJ = (q_BHRID @ k_BHRJD.transpose(-1, -2) * scale).double() - cum_BHRJ[..., None, :]
    first_BHRI = torch.nn.functional.pad(first_key_BHQ, (0, missing), value=T).unflatten(2, (-1, half))
    newest_RIJ = (key_RJ[:, None] <= position_RI[..., None]) & (key_RJ[:, None] >= 0)
    seen_BHRIJ = newest_RIJ & (key_RJ[:, None] >= first_BHRI[..., None])
    kept_BHRI = logits_BHRIJ.masked_fill(~seen_BHRIJ, -torch.inf).logsumexp(-1)
    return kept_BHRI.masked_fill(~seen_BHRIJ.any(-1), torch.inf).flatten(2)[..., :Q]
