"""Forgetting attention over blocks of queries in plain PyTorch: memory linear in the length, any device. The default on CPUs.

Forward saves the log-sum-exp of each row; backward recomputes the probabilities block by block, as the GPU kernels do. Weights
are relative to the maximum over all of a row's keys, known before the first exp: none exceeds 1. Legend: N = B * H (batch and
heads folded), Q queries, T keys, D head dimension; R the queries of one block, J the keys it sees."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..attention_shared.blocks import fold, unfold
from .options import Backend, Options
from .pruning.threshold import apply_pruning, first_kept_key
from .validation import check_values
from .visibility import TILE, cumulative_log_gate, first_visible_key

QUERY_BLOCK, GPU_QUERY_BLOCK = 64, 512  # on a GPU a block's launches and reading its first key cost more than its products


def _blocks(num_queries: int, num_keys: int, first_key_NQ: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield query slices and the slices of keys that any of their rows sees."""
    size = QUERY_BLOCK if first_key_NQ.device.type == "cpu" else GPU_QUERY_BLOCK
    for start in range(0, num_queries, size):
        rows = slice(start, min(start + size, num_queries))
        stop = rows.stop + num_keys - num_queries
        # first_key never decreases along the queries, so the block's first query has the smallest.
        yield rows, slice(min(max(int(first_key_NQ[:, start].min()), 0), stop - 1), stop)


def _block_logits(
    q_NQD: Tensor, k_NTD: Tensor, cum_NT: Tensor, first_key_NQ: Tensor, scale: float, rows: slice, keys: slice
) -> Tensor:
    """Compute scale * q k^T + D of one block (N, R, J), -inf if masked."""
    offset = k_NTD.shape[1] - q_NQD.shape[1]
    cum_NR = cum_NT[:, rows.start + offset : rows.stop + offset]
    base_N1 = cum_NR[:, :1]
    # For keys before the block's first query, two rounded terms relative to it are accurate enough, as both have the same
    # sign; near the diagonal they cancel, so there the difference is taken in float64.
    diagonal = max(rows.start + offset - keys.start, 0)
    decay_NRJ = q_NQD.new_empty(*cum_NR.shape, keys.stop - keys.start)
    to_query, from_key = (cum_NR - base_N1).to(q_NQD.dtype), (base_N1 - cum_NT[:, keys]).to(q_NQD.dtype)
    torch.add(to_query[:, :, None], from_key[:, None, :diagonal], out=decay_NRJ[:, :, :diagonal])
    decay_NRJ[:, :, diagonal:] = cum_NR[:, :, None] - cum_NT[:, None, keys][:, :, diagonal:]
    logits_NRJ = decay_NRJ.baddbmm_(q_NQD[:, rows], k_NTD[:, keys].transpose(1, 2), alpha=scale)

    position_J = torch.arange(keys.start, keys.stop, device=q_NQD.device)
    query_R1 = torch.arange(rows.start + offset, rows.stop + offset, device=q_NQD.device)[:, None]
    logits_NRJ[:, :, diagonal:].masked_fill_(position_J[diagonal:] > query_R1, float("-inf"))
    first_NR = first_key_NQ[:, rows]
    if bool((first_NR > keys.start).any()):
        logits_NRJ.masked_fill_(position_J < first_NR[..., None], float("-inf"))
    return logits_NRJ


def chunked_forward(
    q_BQHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, cum_BHT: Tensor, first_key_BHQ: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output (B, Q, H, D) in q's dtype and the natural log-sum-exp (B, H, Q), +inf for a query that sees nothing."""
    B, Q, H, D = q_BQHD.shape
    T = k_BTGD.shape[1]
    dtype = torch.promote_types(q_BQHD.dtype, torch.float32)
    q_NQD, k_NTD, v_NTD = (fold(x, H, dtype) for x in (q_BQHD, k_BTGD, v_BTGD))
    cum_NT, first_key_NQ = cum_BHT.reshape(B * H, T), first_key_BHQ.reshape(B * H, Q)
    o_NQD = torch.empty_like(q_NQD)
    lse_NQ = q_NQD.new_empty(B * H, Q)
    for rows, keys in _blocks(Q, T, first_key_NQ):
        logits_NRJ = _block_logits(q_NQD, k_NTD, cum_NT, first_key_NQ, scale, rows, keys)
        top_NR1 = logits_NRJ.amax(-1, keepdim=True)
        empty_NR1 = top_NR1 == float("-inf")
        top_NR1 = top_NR1.masked_fill_(empty_NR1, 0.0)
        weights_NRJ = logits_NRJ.sub_(top_NR1).exp_()
        total_NR1 = weights_NRJ.sum(-1, keepdim=True).masked_fill_(empty_NR1, 1.0)
        torch.div(torch.bmm(weights_NRJ, v_NTD[:, keys]), total_NR1, out=o_NQD[:, rows])
        lse_NQ[:, rows] = (top_NR1 + total_NR1.log()).masked_fill_(empty_NR1, float("inf")).squeeze(-1)
    return o_NQD.view(B, H, Q, D).transpose(1, 2).to(q_BQHD.dtype), lse_NQ.view(B, H, Q)


def attention_without_tiles(
    q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, skipped_BHM: Tensor | None = None, tile: int = TILE
) -> tuple[Tensor, Tensor]:
    """Compute attention without the leading key tiles that `skipped_tiles` counted, of any size, on any device, without
    gradient. Also return the log-sum-exp of each query (B, H, Q): what it lacks to that of all keys was dropped."""
    first_key_BHQ = first_visible_key(log_fgate, q.shape[1])
    if skipped_BHM is not None:
        first_key_BHQ = apply_pruning(first_key_BHQ, skipped_BHM, tile)
    return chunked_forward(q, k, v, cumulative_log_gate(log_fgate), first_key_BHQ, q.shape[-1] ** -0.5)


def chunked_backward(
    do_BQHD: Tensor, q_BQHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, o_BQHD: Tensor, lse_BHQ: Tensor, cum_BHT: Tensor,
    first_key_BHQ: Tensor, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k, v (their dtypes) and of the cumulative log gate, float64 (B, H, T)."""
    B, Q, H, D = q_BQHD.shape
    T, key_heads = k_BTGD.shape[1:3]
    dtype = lse_BHQ.dtype
    q_NQD, k_NTD, v_NTD, do_NQD, o_NQD = (fold(x, H, dtype) for x in (q_BQHD, k_BTGD, v_BTGD, do_BQHD, o_BQHD))
    cum_NT, first_key_NQ, lse_NQ = cum_BHT.reshape(B * H, T), first_key_BHQ.reshape(B * H, Q), lse_BHQ.reshape(B * H, Q)
    delta_NQ1 = (do_NQD * o_NQD).sum(-1, keepdim=True)
    dq_NQD, dk_NTD, dv_NTD = torch.empty_like(q_NQD), torch.zeros_like(k_NTD), torch.zeros_like(v_NTD)
    dcum_NT = cum_NT.new_zeros(B * H, T)  # float64: its running sum must not lose the small terms
    for rows, keys in _blocks(Q, T, first_key_NQ):
        weights_NRJ = _block_logits(q_NQD, k_NTD, cum_NT, first_key_NQ, scale, rows, keys)
        weights_NRJ = weights_NRJ.sub_(lse_NQ[:, rows, None]).exp_()
        dv_NTD[:, keys].baddbmm_(weights_NRJ.transpose(1, 2), do_NQD[:, rows])
        dlogits_NRJ = torch.bmm(do_NQD[:, rows], v_NTD[:, keys].transpose(1, 2)).sub_(delta_NQ1[:, rows])
        dlogits_NRJ.mul_(weights_NRJ)
        dq_NQD[:, rows] = torch.bmm(dlogits_NRJ, k_NTD[:, keys]).mul_(scale)
        dk_NTD[:, keys].baddbmm_(dlogits_NRJ.transpose(1, 2), q_NQD[:, rows], alpha=scale)
        dcum_NT[:, keys] -= dlogits_NRJ.sum(1)
        dcum_NT[:, rows.start + T - Q : rows.stop + T - Q] += dlogits_NRJ.sum(2)
    return (
        dq_NQD.view(B, H, Q, D).transpose(1, 2).to(q_BQHD.dtype),
        unfold(dk_NTD, B, key_heads, k_BTGD.dtype),
        unfold(dv_NTD, B, key_heads, v_BTGD.dtype),
        dcum_NT.view(B, H, T),
    )


def _forward(q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, options: Options) -> tuple[Tensor, list[Tensor]]:
    # Checked here rather than in the public function, so that torch.compile need not trace it.
    check_values(log_fgate, options.seq_start, options.cu_seqlens)
    cum_BHT = cumulative_log_gate(log_fgate)
    first_key_BHQ = first_kept_key(q, k, log_fgate, cum_BHT, options)
    o_BQHD, lse_BHQ = chunked_forward(q, k, v, cum_BHT, first_key_BHQ, options.scale)
    return o_BQHD.contiguous(), [lse_BHQ, cum_BHT, first_key_BHQ]


def _backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, kept: list[Tensor], scale: float, deterministic: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lse, cum, first_key = kept
    dq, dk, dv, dcum_BHT = chunked_backward(do, q, k, v, o, lse, cum, first_key, scale)
    # d loss / d log f_t = sum over s >= t of d loss / d c_s (identity I5); 0 for the first token.
    dgate_BHT = dcum_BHT.flip(-1).cumsum(-1).flip(-1)
    dgate_BHT[..., 0] = 0.0
    return dq.contiguous(), dk.contiguous(), dv.contiguous(), dgate_BHT.transpose(1, 2).contiguous()


def _kept_like(q: Tensor, k: Tensor) -> list[Tensor]:
    B, Q, H, _ = q.shape
    sizes = ((Q, torch.promote_types(q.dtype, torch.float32)), (k.shape[1], torch.float64), (Q, torch.int32))
    return [q.new_empty(B, H, size, dtype=dtype) for size, dtype in sizes]


BACKEND = Backend(_forward, _backward, _kept_like)
