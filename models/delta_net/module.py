"""DeltaNet (arXiv 2406.06484): flash-linear-attention's layer in our skeleton, the paper's set-up (Appendix B)."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from torch import Tensor, nn

from kernels.fla_cpu.install import install
from models.backbone import Backbone, Padding, init_linear_recurrent_, linear_recurrent_blocks
from models.cache import DecodingCache
from models.delta_net.spec import DeltaNetSpec

install()

from fla.layers.delta_net import DeltaNet  # noqa: E402  (fla after the CPU versions are in place)


class DeltaNetMixer(DeltaNet):
    """fla's layer behind the skeleton's mixer signature."""

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        # Padded inputs are zero and nothing here has a bias: keys, values and convolutions stay zero without a mask.
        return super().forward(x, past_key_values=cache, use_cache=cache is not None)[0]


class Model(Backbone):
    def __init__(self, spec: DeltaNetSpec) -> None:
        def mixer(layer_idx: int) -> nn.Module:
            return DeltaNetMixer(
                hidden_size=spec.hidden_size,
                norm_eps=spec.norm_eps,
                layer_idx=layer_idx,
                num_heads=spec.num_heads,
                conv_size=spec.conv_size,
            )

        super().__init__(spec, linear_recurrent_blocks(spec, mixer))

    def init_module(self, module: nn.Module) -> None:
        """Start with mixer projections Xavier-uniform with gain 2^-2.5, convolutions as PyTorch starts them; the rest N(0,
        0.02^2), MLP outputs scaled by depth."""
        init_linear_recurrent_(module, len(self.layers))
