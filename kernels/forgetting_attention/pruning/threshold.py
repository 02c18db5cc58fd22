"""Adaptive computation pruning (ACP): the threshold, its bounds, the share of tiles it prunes; and the keys that a call skips.

delta = -2 U - log(T) + log(eps) with U >= |scale * q_i . k_j| and log(eps) = -10. A pair with D below delta has probability
below eps / T, because the query's own key has logit >= -U and D = 0; so a row loses less than eps in total."""

import math

import torch
from torch import Tensor

from ..options import Options
from ..validation import check_threshold
from ..visibility import TILE, cumulative_log_gate, first_visible_key
from .tight import tight_tiles

LOG_TOLERANCE = -10.0


def pruning_threshold(logit_bound: Tensor | float, num_keys: int, log_tolerance: float = LOG_TOLERANCE) -> Tensor | float:
    """Return delta for logits within +-`logit_bound` (a float or a tensor broadcastable to (B, H)) over `num_keys` keys."""
    if isinstance(logit_bound, Tensor) and torch.compiler.is_compiling():  # math.log would recompile for each length
        keys = torch.full((), num_keys, dtype=torch.float64, device=logit_bound.device)
        return -2.0 * logit_bound - keys.log().to(logit_bound.dtype) + log_tolerance
    return -2.0 * logit_bound - math.log(num_keys) + log_tolerance


def qk_norm_logit_bound(
    q_weight: Tensor, k_weight: Tensor, head_dim: int, dtype: torch.dtype = torch.float64, roundings: int = 1
) -> Tensor:
    """Return U = sqrt(D) * max|g_q| * max|g_k| for q, k that went through RMSNorm with scales g (and the default `scale`).

    The weights are (D,), shared by the heads, or (H, D); the result is () or (H,), without gradient. With grouped queries
    repeat k's weights to H heads first. A rotation (RoPE) after the norm does not change the bound by itself. `dtype`: that of
    q and k, to which they were rounded `roundings` times after the norm (once, with RoPE twice)."""
    if q_weight.shape[-1] != head_dim or k_weight.shape[-1] != head_dim:
        shapes = f"{tuple(q_weight.shape)} and {tuple(k_weight.shape)}"
        raise ValueError(f"q_weight and k_weight have shapes {shapes}; their last size must be {head_dim}.")
    # Rounding to nearest has a relative error of at most u = eps / 2 (2^-8 in bf16), so each rounding scales a norm by at most
    # 1 + u, and a product of two by its square: without this factor, heads with U = 47 lost up to e^0.74 times eps in bf16.
    rounded = (1.0 + torch.finfo(dtype).eps / 2) ** (2 * roundings)
    largest_q, largest_k = (weight.detach().abs().amax(-1).float() for weight in (q_weight, k_weight))
    return rounded * math.sqrt(head_dim) * largest_q * largest_k


def norm_logit_bound(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Return U = scale * max_i |q_i| * max_j |k_j|, (B, H) float32, without gradient; q (B, Q, H, D), k (B, T, Hkv, D)."""
    if q.is_cuda and q.dtype != torch.float64:
        from .norms import triton_logit_bound  # one pass over memory

        return triton_logit_bound(q.detach(), k.detach(), scale)
    dtype = torch.promote_types(q.dtype, torch.float32)
    q_BH, k_BG = (torch.linalg.vector_norm(x.detach(), dim=-1, dtype=dtype).amax(1).float() for x in (q, k))
    return abs(scale) * q_BH * k_BG.repeat_interleave(q.shape[2] // k.shape[2], dim=1)


def resolve_threshold(
    threshold: float | str | Tensor | None, q: Tensor, k: Tensor, scale: float, log_tolerance: float = LOG_TOLERANCE
) -> Tensor | None:
    """Resolve the option `adaptive_threshold`, except "tight", to a float32 (B, H) tensor on q's device, or None."""
    B, _, H, _ = q.shape
    if threshold is None:
        return None
    if isinstance(threshold, str):
        if threshold != "auto":
            raise ValueError(f"adaptive_threshold is {threshold!r}; it must be None, a float, a tensor, 'auto' or 'tight'.")
        if q.is_cuda and type(q) is Tensor and not torch.compiler.is_compiling():
            from .norms import largest_product

            return largest_product(q, k, -2.0 * abs(scale), float(pruning_threshold(0.0, k.shape[1], log_tolerance)))
        threshold = torch.as_tensor(pruning_threshold(norm_logit_bound(q, k, scale), k.shape[1], log_tolerance))
        return threshold.nan_to_num(nan=-torch.inf, neginf=-torch.inf)  # without a finite bound nothing is pruned
    if not isinstance(threshold, Tensor):
        try:
            if isinstance(threshold, bool):  # False would prune whatever decays at all
                raise TypeError
            threshold = float(threshold)
        except TypeError:
            rule = "it must be None, a float, a tensor, 'auto' or 'tight'"
            raise ValueError(f"adaptive_threshold is {threshold!r}; {rule}.") from None
        if math.isnan(threshold) or threshold > 0:
            raise ValueError(f"adaptive_threshold is {threshold}; a threshold on D must be <= 0.")
        return torch.full((B, H), threshold, device=q.device)
    if threshold.dim() > 2 or any(n not in (1, m) for n, m in zip(threshold.shape[::-1], (H, B), strict=False)):
        raise ValueError(f"adaptive_threshold has shape {tuple(threshold.shape)}; it must broadcast to (B, H) = {(B, H)}.")
    if threshold.device != q.device and threshold.dim() > 0:
        raise ValueError(f"adaptive_threshold is on {threshold.device}; it must be on q's device, {q.device}.")
    if type(q) is Tensor and not torch.compiler.is_compiling():
        check_threshold(threshold)
    return threshold.detach().to(q.device, torch.float32).expand(B, H).contiguous()


def pruned_tile_share(
    log_fgate: Tensor, adaptive_threshold: float | Tensor, *, num_queries: int | None = None, tile: int = TILE
) -> Tensor:
    """Compute the share of the causal (query tile, key tile) pairs that pruning skips, float32 (B, H); log_fgate (B, T, H).

    `tile` defaults to that of the kernels; a smaller one gives the statistic at a finer granularity."""
    B, T, H = log_fgate.shape
    Q = T if num_queries is None else num_queries
    if not 1 <= Q <= T:
        raise ValueError(f"num_queries is {Q}; it must be in 1..{T}, the tokens of log_fgate.")
    threshold_BH = torch.as_tensor(adaptive_threshold, dtype=torch.float32, device=log_fgate.device).expand(B, H)
    check_threshold(threshold_BH)
    pruned_BHM = pruned_tiles(cumulative_log_gate(log_fgate.detach()), Q, threshold_BH, tile)
    return share_of_tiles(pruned_BHM, Q, T, tile)


def share_of_tiles(pruned_BHM: Tensor, num_queries: int, num_keys: int, tile: int = TILE) -> Tensor:
    """Return the number of these leading tiles as a share of the causal (query tile, key tile) pairs, float32 (B, H)."""
    last_query_M = torch.arange(tile - 1, num_queries + tile - 1, tile, device=pruned_BHM.device).clamp(max=num_queries - 1)
    causal_tiles = ((last_query_M + (num_keys - num_queries)) // tile + 1).sum()
    return pruned_BHM.sum(-1).float() / causal_tiles


def pruned_tiles(cum_BHT: Tensor, num_queries: int, threshold_BH: Tensor, tile: int = TILE) -> Tensor:
    """Count the leading key tiles that each query tile may skip by ACP, int32 (B, H, M), M = ceil(Q / tile).

    A tile is dropped iff its largest D, at (first query, last key), is below the threshold (strictly; section 11 of the ACP
    protocol). `cum` never increases, so the dropped tiles are a prefix, found by binary search over the tiles' last keys."""
    T = cum_BHT.shape[-1]
    first_query_M = torch.arange(0, num_queries, tile, device=cum_BHT.device) + (T - num_queries)
    tile_end_BHN = cum_BHT[..., tile - 1 :: tile].contiguous()
    limit_BHM = cum_BHT[..., first_query_M] - threshold_BH.double().unsqueeze(-1)
    count_BHM = torch.searchsorted(-tile_end_BHN, -limit_BHM.contiguous())
    # The tile that holds the first query itself is never dropped, whatever the threshold.
    return torch.minimum(count_BHM, first_query_M // tile).to(torch.int32)


def apply_pruning(first_key_BHQ: Tensor, pruned_BHM: Tensor, tile: int = TILE) -> Tensor:
    """Fold the pruned tiles into `first_key`: both drop a prefix."""
    pruned_BHQ = pruned_BHM.repeat_interleave(tile, dim=-1)[..., : first_key_BHQ.shape[-1]] * tile
    return torch.maximum(first_key_BHQ, pruned_BHQ)


def skipped_tiles(
    q: Tensor,
    k: Tensor,
    log_fgate: Tensor,
    *,
    adaptive_threshold: float | str | Tensor | None,
    log_tolerance: float = LOG_TOLERANCE,
    tile: int = TILE,
) -> Tensor:
    """Count the leading key tiles that `forgetting_attention` with these options skips for each query tile.

    Returns int32 (B, H, M), without gradient; arguments as there, with the default `scale`. A `tile` other than the kernels'
    counts what pruning at that granularity would skip."""
    log_fgate, scale = log_fgate.detach(), q.shape[-1] ** -0.5
    if isinstance(adaptive_threshold, str) and adaptive_threshold == "tight":
        first_key_BHQ = first_visible_key(log_fgate, q.shape[1])
        return tight_tiles(q, k, cumulative_log_gate(log_fgate), first_key_BHQ, scale, log_tolerance, tile)
    threshold_BH = resolve_threshold(adaptive_threshold, q, k, scale, log_tolerance)
    if threshold_BH is None:
        raise ValueError("adaptive_threshold is None: nothing is pruned, so there is nothing to count.")
    return pruned_tiles(cumulative_log_gate(log_fgate), q.shape[1], threshold_BH, tile)


def first_kept_key(q: Tensor, k: Tensor, log_fgate: Tensor, cum_BHT: Tensor, options: Options) -> Tensor:
    """Return the first key that each query sees and that pruning keeps, int32 (B, H, Q); see `first_visible_key`."""
    Q = q.shape[1]
    first_key_BHQ = first_visible_key(log_fgate, Q, options.seq_start, options.cu_seqlens, options.window_size)
    if options.threshold is not None:
        first_key_BHQ = apply_pruning(first_key_BHQ, pruned_tiles(cum_BHT, Q, options.threshold))
    if options.tolerance is not None:
        skipped_BHM = tight_tiles(q, k, cum_BHT, first_key_BHQ, options.scale, options.tolerance)
        first_key_BHQ = apply_pruning(first_key_BHQ, skipped_BHM)
    return first_key_BHQ
