"""Gated linear attention (arXiv 2312.06635): flash-linear-attention's layer in our skeleton."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
from fla.layers.gla import GatedLinearAttention

from models.gated_linear_attention.spec import GATE_RANK, KEYS_PER_VALUE, GatedLinearAttentionSpec


class Model(RecurrentModel):
    def __init__(self, spec: GatedLinearAttentionSpec) -> None:
        heads, rank = spec.num_heads, GATE_RANK
        super().__init__(spec, GatedLinearAttention, num_heads=heads, expand_k=KEYS_PER_VALUE, gate_low_rank_dim=rank)
