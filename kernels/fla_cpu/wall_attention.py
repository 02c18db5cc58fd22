"""Wall attention in PyTorch, for cases that fla's kernel does not support: CPUs, padding, and cached tokens.

Suffixes: B batch, H heads, S earlier tokens, C tokens of a chunk, D head dimension."""

from typing import Any

import torch
from torch import Tensor

from kernels.fla_cpu.recurrences import chunk_size, decayed_scores, log_decay, to_chunks


def wall_attention(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, faded_k: Tensor | None = None, seq_start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute attention with logits sum_d q_id k_jd exp(sum over j < t <= i of g_td) / sqrt(D) for j <= i, log gates g <= 0:
    each channel of a key decays, not the weight of its token. Return o (B, T, H, D) in q's dtype, and all keys
    (B, S + T, H, D) in fp32, decayed up to the last token.

    q, k, g (B, T, H, D) hold T tokens; v also holds S earlier ones, whose decayed keys are `faded_k` (B, S, H, D). Keys
    before `seq_start` (B,) are masked. Sums run in fp32, and no exponent is above 0."""
    out, size = q.dtype, chunk_size(q.shape[1])
    q_BHNCD, k_BHNCD, g_BHNCD = (to_chunks(x, size) for x in (q, k, g))
    c, low = log_decay(g_BHNCD)
    q_BHNCD, k_BHNCD = q_BHNCD * (1 + low) * q.shape[-1] ** -0.5, k_BHNCD * (1 - low)
    inside = decayed_scores(q_BHNCD, k_BHNCD, c)
    v, last = v.float().transpose(1, 2), c[..., -1:, :]
    ended = k_BHNCD * (last - c).exp() * (1 + low[..., -1:, :])  # keys decayed to the end of their chunk
    keys = k.float().transpose(1, 2)[:, :, :0] if faded_k is None else faded_k.float().transpose(1, 2)
    outputs, total = [], keys.shape[2] + q.shape[1]
    parts = (q_BHNCD * c.exp(), inside, ended, last.exp())
    for q_BHCD, inside_BHCC, ended_BHCD, fade in zip(*(x.unbind(2) for x in parts), strict=True):
        start = keys.shape[2]
        logits = torch.cat([q_BHCD @ keys.mT, inside_BHCC], -1)[..., :total]
        seen = torch.ones_like(logits[0, 0], dtype=torch.bool).tril(start)
        if seq_start is not None:
            seen = seen & (torch.arange(logits.shape[-1], device=q.device) >= seq_start[:, None, None, None])
        logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
        outputs.append(logits.softmax(-1) @ v[:, :, : logits.shape[-1]])
        keys = torch.cat([keys * fade, ended_BHCD[:, :, : total - start]], 2)
    return torch.cat(outputs, 2)[:, :, : q.shape[1]].transpose(1, 2).to(out), keys.transpose(1, 2)


def parallel_wall_attn(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **more: Any) -> Tensor:
    """`wall_attention` on whole sequences, with fla's name and arguments."""
    if any(value is not None for value in more.values()):
        raise NotImplementedError(f"Wall attention on the CPU takes none of {', '.join(more)}")
    return wall_attention(q, k, v, g)[0]
