"""Forgetting attention: softmax attention with a data-dependent forget gate (arXiv 2503.02130)."""

from .interface import forgetting_attention
from .pruning.threshold import (
    norm_logit_bound,
    pruned_tile_share,
    pruning_threshold,
    qk_norm_logit_bound,
)
from .reference import reference_attention

__all__ = [
    "forgetting_attention",
    "norm_logit_bound",
    "pruned_tile_share",
    "pruning_threshold",
    "qk_norm_logit_bound",
    "reference_attention",
]
