"""Mamba-3's trapezoidal recurrence (arXiv 2603.15569), with keys and queries per head, computed by `kernels.ssd`.

Suffixes: B batch, T tokens, H heads, N state size (keys), P value channels."""

import torch
from torch import Tensor

from kernels.ssd import ssd

State = tuple[Tensor, Tensor, Tensor]
"""State: h (B, H, N, P), and key (B, H, N) and value (B, H, P) of the last token."""


def trapezoidal_ssd(
    q: Tensor, k: Tensor, x: Tensor, step: Tensor, share: Tensor, log_decay: Tensor, skip: Tensor, state: State | None = None
) -> tuple[Tensor, State]:
    """Run h_t = exp(g_t) (h_{t-1} + (1 - share_t) step_t k_{t-1} x_{t-1}^T) + share_t step_t k_t x_t^T, o_t = h_t^T q_t + skip
    x_t on q, k (B, T, H, N), x (B, T, H, P), step, share in [0, 1] and log_decay g <= 0 (B, T, H) in at least fp32, skip (H,).
    Return o in x's shape and dtype, and the state. Differentiable in all inputs.

    Each token's key enters the state twice, the second time with the next token. The expression in brackets is a plain SSD over
    the tokens shifted by one, with heads as rows of the batch; nothing of a later token enters, not even to be subtracted."""
    own, heads = share * step, x.shape[2]
    h, last_k, last_x = state if state is not None else (None, torch.zeros_like(k[:, 0]), torch.zeros_like(x[:, 0]))
    none = torch.zeros_like(step[:, 0])
    earlier_k, earlier_x, earlier_own, earlier_g = (
        torch.cat([first[:, None], y[:, :-1]], 1) for first, y in ((last_k, k), (last_x, x), (none, own), (none, log_decay))
    )
    tokens = (q, earlier_k, earlier_x[..., None, :], (earlier_own + (1 - share) * step)[..., None], earlier_g[..., None])
    rows = (y.transpose(1, 2).flatten(0, 1) for y in tokens)
    o, h = ssd(*rows, skip.new_zeros(1), None if h is None else h.flatten(0, 1)[:, None])
    o, h = o.squeeze(2).unflatten(0, (-1, heads)).transpose(1, 2), h.squeeze(1).unflatten(0, (-1, heads))
    decay, direct = log_decay.exp(), skip + own * (q * k).sum(-1, dtype=step.dtype)
    o = (decay[..., None] * o + direct[..., None] * x).to(x.dtype)
    last_k, last_x = k[:, -1].clone(), x[:, -1].clone()
    h = decay[:, -1, :, None, None] * h + own[:, -1, :, None, None] * last_k[..., None] * last_x[..., None, :]
    return o, (h, last_k, last_x)
