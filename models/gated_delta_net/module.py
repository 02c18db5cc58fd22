"""Gated DeltaNet (arXiv 2412.06464): flash-linear-attention's layer in our skeleton, begun as the other recurrent
models are."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
import torch
from torch import Tensor, nn

from kernels.fla_cpu.install import install
from models.backbone import Backbone, Padding, init_linear_recurrent_, linear_recurrent_blocks, start_with, step_size_bias
from models.cache import DecodingCache
from models.gated_delta_net.spec import GatedDeltaNetSpec

install()

from fla.layers.gated_deltanet import GatedDeltaNet  # noqa: E402  (fla after the CPU versions are in place)


class GatedDeltaNetMixer(GatedDeltaNet):
    """fla's layer behind the skeleton's mixer signature."""

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        # Padded inputs are zero: keys, values and convolutions stay zero, and gates alone leave a state of zeros as it is.
        return super().forward(x, past_key_values=cache, use_cache=cache is not None)[0]


class Model(Backbone):
    def __init__(self, spec: GatedDeltaNetSpec) -> None:
        def mixer(layer_idx: int) -> nn.Module:
            return GatedDeltaNetMixer(
                hidden_size=spec.hidden_size,
                expand_v=2,
                head_dim=spec.head_dim,
                num_heads=spec.num_heads,
                conv_size=spec.conv_size,
                norm_eps=spec.norm_eps,
                layer_idx=layer_idx,
            )

        super().__init__(spec, linear_recurrent_blocks(spec, mixer))

    def init_module(self, module: nn.Module) -> None:
        """Start with mixer projections Xavier-uniform with gain 2^-2.5, the rest N(0, 0.02^2), MLP outputs scaled by depth;
        decay rates uniform in [0, 16], step sizes log-uniform in [1e-3, 1e-1], as in fla."""
        init_linear_recurrent_(module, len(self.layers))
        if isinstance(module, GatedDeltaNetMixer):
            start_with(module.A_log, torch.empty(module.num_heads).uniform_(0, 16).log())
            start_with(module.dt_bias, step_size_bias(module.num_heads))
