"""Pruning as a call's options ask for it: which leading tiles of keys each tile of queries skips."""

from torch import Tensor

from ..options import Options
from ..visibility import TILE, cumulative_log_gate, first_visible_key
from .threshold import LOG_TOLERANCE, apply_pruning, pruned_tiles, resolve_threshold
from .tight import tight_tiles


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

    int32 (B, H, M), without gradient; arguments as there, with the default `scale`. Another `tile` than the kernels' own tells
    what pruning at that granularity would skip."""
    log_fgate, scale = log_fgate.detach(), q.shape[-1] ** -0.5
    if isinstance(adaptive_threshold, str) and adaptive_threshold == "tight":
        first_key_BHQ = first_visible_key(log_fgate, q.shape[1])
        return tight_tiles(q, k, cumulative_log_gate(log_fgate), first_key_BHQ, scale, log_tolerance, tile)
    threshold_BH = resolve_threshold(adaptive_threshold, q, k, scale, log_tolerance)
    if threshold_BH is None:
        raise ValueError("adaptive_threshold is None: nothing is pruned, so there is nothing to count.")
    return pruned_tiles(cumulative_log_gate(log_fgate), q.shape[1], threshold_BH, tile)


def first_kept_key(q: Tensor, k: Tensor, log_fgate: Tensor, cum_BHT: Tensor, options: Options) -> Tensor:
    """Find the first key that each query sees and that pruning leaves, int32 (B, H, Q); see `first_visible_key`."""
    Q = q.shape[1]
    first_key_BHQ = first_visible_key(log_fgate, Q, options.seq_start, options.cu_seqlens, options.window_size)
    if options.threshold is not None:
        first_key_BHQ = apply_pruning(first_key_BHQ, pruned_tiles(cum_BHT, Q, options.threshold))
    if options.tolerance is not None:
        skipped_BHM = tight_tiles(q, k, cum_BHT, first_key_BHQ, options.scale, options.tolerance)
        first_key_BHQ = apply_pruning(first_key_BHQ, skipped_BHM)
    return first_key_BHQ
