"""Gated linear attention (arXiv 2312.06635): flash-linear-attention's layer in our skeleton."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from torch import Tensor, nn

from kernels.fla_cpu.install import install
from models.backbone import Backbone, Padding, init_linear_recurrent_, linear_recurrent_blocks
from models.cache import DecodingCache
from models.gated_linear_attention.spec import GATE_RANK, KEYS_PER_VALUE, GatedLinearAttentionSpec

install()

from fla.layers.gla import GatedLinearAttention  # noqa: E402  (fla after the CPU versions are in place)


class Mixer(GatedLinearAttention):
    """fla's layer behind the skeleton's mixer signature."""

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        # Padded inputs are zero, so their keys and values are zero and the state stays zero: no mask is needed.
        return super().forward(x, past_key_values=cache, use_cache=cache is not None)[0]


class Model(Backbone):
    def __init__(self, spec: GatedLinearAttentionSpec) -> None:
        def mixer(layer_idx: int) -> nn.Module:
            return Mixer(
                hidden_size=spec.hidden_size,
                num_heads=spec.num_heads,
                expand_k=KEYS_PER_VALUE,
                gate_low_rank_dim=GATE_RANK,
                norm_eps=spec.norm_eps,
                layer_idx=layer_idx,
            )

        super().__init__(spec, linear_recurrent_blocks(spec, mixer))

    def init_module(self, module: nn.Module) -> None:
        """Start as the other recurrent models, the gates' biases at 0."""
        init_linear_recurrent_(module, len(self.layers))
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
