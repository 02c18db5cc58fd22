"""Gated linear attention (arXiv 2312.06635): flash-linear-attention's layer in our backbone.

Initialised like other recurrent models."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
from fla.layers.gla import GatedLinearAttention

from beyond.models.gated_linear_attention.spec import GatedLinearAttentionSpec


class Model(RecurrentModel):
    def __init__(self, spec: GatedLinearAttentionSpec) -> None:
        super().__init__(spec, GatedLinearAttention, num_heads=spec.num_heads, gate_low_rank_dim=spec.GATE_RANK)
