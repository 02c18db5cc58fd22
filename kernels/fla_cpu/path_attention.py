"""PaTH attention with a forget gate in PyTorch, for cases that fla's kernel does not support: CPUs, padding, and cached tokens.

Suffixes: B batch, H heads, S earlier tokens, C tokens of a chunk, D head dimension."""

import torch
from torch import Tensor

CHUNK = 64


def path_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    log_fgate: Tensor,
    *,
    moved_k: Tensor | None = None,
    seq_start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention with logits (q_i^T H_i ... H_{j+1} k_j + sum over j < t <= i of log_fgate_t) / sqrt(D) for j <= i, and
    H_t = I - beta_t w_t w_t^T (arXiv 2505.16381; the gate is scaled by 1 / sqrt(D) too, as in fla). Return o (B, T, H, D) in
    q's dtype, and all keys (B, S + T, H, D) transformed up to the last token, H_{S+T} ... H_{j+1} k_j.

    q, k, w (B, T, H, D) and beta (B, T, H) hold T tokens; v and log_fgate also hold S earlier ones, whose transformed keys are
    `moved_k` (B, S, H, D). Keys before `seq_start` (B,) are masked. Sums run in fp32 at least."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    out, scale = q.dtype, q.shape[-1] ** -0.5
    q, k, v, w = (x.to(dtype).transpose(1, 2) for x in (q, k, v, w))
    beta = beta.to(dtype).transpose(1, 2)[..., None]
    cum = log_fgate.double().cumsum(1).transpose(1, 2)
    keys = k[:, :, :0] if moved_k is None else moved_k.to(dtype).transpose(1, 2)
    outputs = []
    for first in range(0, q.shape[2], CHUNK):
        q_BHCD, k_BHCD, w_BHCD, beta_BHC1 = (x[:, :, first : first + CHUNK] for x in (q, k, w, beta))
        start, keys = keys.shape[2], torch.cat([keys, k_BHCD], 2)
        # Coefficients with which the chunk's tokens change each earlier key, corrected for the changes by tokens in between.
        act = (beta_BHC1 * (w_BHCD @ keys.mT)).tril(start - 1)
        between = (beta_BHC1 * (w_BHCD @ w_BHCD.mT)).tril(-1)
        act = torch.linalg.solve_triangular(between, act, upper=False, unitriangular=True)
        logits = q_BHCD @ keys.mT - (q_BHCD @ w_BHCD.mT).tril() @ act
        seen = torch.ones_like(logits[0, 0], dtype=torch.bool).tril(start)
        if seq_start is not None:
            seen = seen & (torch.arange(keys.shape[2], device=q.device) >= seq_start[:, None, None, None])
        decay = cum[:, :, start : keys.shape[2], None] - cum[:, :, None, : keys.shape[2]]
        logits = (scale * (logits + decay.to(dtype))).masked_fill(~seen, torch.finfo(dtype).min)
        outputs.append(logits.softmax(-1) @ v[:, :, : keys.shape[2]])
        keys = keys - act.mT @ w_BHCD
    return torch.cat(outputs, 2).transpose(1, 2).to(out), keys.transpose(1, 2)


def parallel_path_attn(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor, cu_seqlens: None = None
) -> tuple[Tensor, Tensor]:
    """`path_attention` on whole sequences, with fla's name and arguments."""
    if cu_seqlens is not None:
        raise NotImplementedError("packed sequences (cu_seqlens) run on CUDA only; on the CPU pass a padded batch")
    return path_attention(q, k, v, w, beta, g)
