"""Kimi Delta Attention (arXiv 2510.26692): flash-linear-attention's layer in our skeleton, begun as other recurrent models."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import FlaMixer, RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
import torch
from fla.layers.kda import KimiDeltaAttention
from torch import nn

from models.backbone import start_with, step_size_bias
from models.kimi_delta_attention.spec import KimiDeltaAttentionSpec


class KimiDeltaAttentionMixer(FlaMixer, KimiDeltaAttention):
    """fla's layer behind the skeleton's mixer signature."""


class Model(RecurrentModel):
    def __init__(self, spec: KimiDeltaAttentionSpec) -> None:
        sizes = {name: getattr(spec, name) for name in ("head_dim", "num_heads", "conv_size")}
        super().__init__(spec, KimiDeltaAttentionMixer, **sizes)

    def init_module(self, module: nn.Module) -> None:
        """Start with decay rates uniform in [1, 16], step sizes log-uniform in [1e-3, 1e-1], as in fla."""
        super().init_module(module)
        if isinstance(module, KimiDeltaAttentionMixer):
            start_with(module.A_log, torch.empty(module.num_heads).uniform_(1, 16).log())
            start_with(module.dt_bias, step_size_bias(module.gate_dim))
