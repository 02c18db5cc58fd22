"""Kimi Delta Attention (arXiv 2510.26692): flash-linear-attention's layer in our skeleton, begun as the other recurrent models
are."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
import torch
from torch import Tensor, nn

from kernels.fla_cpu.install import install
from models.backbone import Backbone, Padding, init_linear_recurrent_, linear_recurrent_blocks, start_with, step_size_bias
from models.cache import DecodingCache
from models.kimi_delta_attention.spec import KimiDeltaAttentionSpec

install()

from fla.layers.kda import KimiDeltaAttention  # noqa: E402  (fla after the CPU versions are in place)


class KimiDeltaAttentionMixer(KimiDeltaAttention):
    """fla's layer behind the skeleton's mixer signature."""

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        # Padded inputs are zero: keys, values and convolutions stay zero, and gates alone leave a state of zeros as it is.
        return super().forward(x, past_key_values=cache, use_cache=cache is not None)[0]


class Model(Backbone):
    def __init__(self, spec: KimiDeltaAttentionSpec) -> None:
        def mixer(layer_idx: int) -> nn.Module:
            return KimiDeltaAttentionMixer(
                hidden_size=spec.hidden_size,
                head_dim=spec.head_dim,
                num_heads=spec.num_heads,
                conv_size=spec.conv_size,
                norm_eps=spec.norm_eps,
                layer_idx=layer_idx,
            )

        super().__init__(spec, linear_recurrent_blocks(spec, mixer))

    def init_module(self, module: nn.Module) -> None:
        """Start with mixer projections Xavier-uniform with gain 2^-2.5, the rest N(0, 0.02^2), MLP outputs scaled by depth, no
        biases; decay rates uniform in [1, 16], step sizes log-uniform in [1e-3, 1e-1], as in fla."""
        init_linear_recurrent_(module, len(self.layers))
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, KimiDeltaAttentionMixer):
            start_with(module.A_log, torch.empty(module.num_heads).uniform_(1, 16).log())
            start_with(module.dt_bias, step_size_bias(module.gate_dim))
