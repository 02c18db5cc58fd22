"""Forgetting attention: softmax attention with a data-dependent forget gate (arXiv 2503.02130)."""

from .cached import forgetting_attention_cached, gates_of_sums, sum_log_gates
from .chunked import attention_without_tiles
from .interface import forgetting_attention
from .pruning.threshold import (
    norm_logit_bound,
    pruned_tile_share,
    pruning_threshold,
    qk_norm_logit_bound,
    share_of_tiles,
    skipped_tiles,
)
from .reference import reference_attention
from .visibility import TILE

__all__ = [
    "TILE",
    "attention_without_tiles",
    "forgetting_attention",
    "forgetting_attention_cached",
    "gates_of_sums",
    "norm_logit_bound",
    "pruned_tile_share",
    "pruning_threshold",
    "qk_norm_logit_bound",
    "reference_attention",
    "share_of_tiles",
    "skipped_tiles",
    "sum_log_gates",
]
