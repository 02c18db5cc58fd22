"""Forgetting attention: softmax attention with a data-dependent forget gate (arXiv 2503.02130)."""

from kernels.forgetting_attention.interface import forgetting_attention
from kernels.forgetting_attention.reference import reference_attention
from kernels.forgetting_attention.threshold import (
    norm_logit_bound,
    pruned_tile_share,
    pruning_threshold,
    qk_norm_logit_bound,
)

__all__ = [
    "forgetting_attention",
    "norm_logit_bound",
    "pruned_tile_share",
    "pruning_threshold",
    "qk_norm_logit_bound",
    "reference_attention",
]
