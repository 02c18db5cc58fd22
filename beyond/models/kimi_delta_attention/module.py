"""Kimi Delta Attention (arXiv 2510.26692): flash-linear-attention's layer in our backbone.

Initialised like other recurrent models."""

from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
from fla.layers.kda import KimiDeltaAttention

from beyond.models.kimi_delta_attention.spec import KimiDeltaAttentionSpec


class Model(RecurrentModel):
    decay_rates = (1, 16)  # as in fla

    def __init__(self, spec: KimiDeltaAttentionSpec) -> None:
        sizes = {name: getattr(spec, name) for name in ("head_dim", "num_heads", "conv_size")}
        super().__init__(spec, KimiDeltaAttention, **sizes)
        for block in self.layers:
            mixer: Any = block.attn
            mixer.o_norm.activation = spec.output_gate_activation  # fla's layer has no argument for it
