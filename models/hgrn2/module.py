"""HGRN2 (arXiv 2404.07904): flash-linear-attention's layer in our skeleton, the paper's set-up (Appendix B).

As in the released code, the layer-wise lower bounds exist but do not reach the mixer, unless `use_lower_bound` asks
for it.
"""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
import torch
from torch import Tensor, nn

from kernels.fla_cpu.install import install
from models.backbone import Backbone, Padding, init_linear_recurrent_, linear_recurrent_blocks
from models.cache import DecodingCache
from models.hgrn2.spec import HGRN2Spec

install()

from fla.layers.hgrn2 import HGRN2Attention  # noqa: E402  (fla after the CPU versions are in place)


class HGRN2Mixer(HGRN2Attention):
    """fla's layer behind the skeleton's mixer signature."""

    def forward(
        self, x: Tensor, cache: DecodingCache | None, padding: Padding | None, lower_bound: Tensor | None = None
    ) -> Tensor:
        # Padded inputs are zero, so their values k * i are zero and the state stays zero: no mask is needed.
        return super().forward(x, past_key_values=cache, use_cache=cache is not None, lower_bound=lower_bound)[0]


class Model(Backbone):
    """Backbone with the lower bounds of the forget gates, (layers, d)."""

    def __init__(self, spec: HGRN2Spec) -> None:
        def mixer(layer_idx: int) -> nn.Module:
            return HGRN2Mixer(
                hidden_size=spec.hidden_size, norm_eps=spec.norm_eps, layer_idx=layer_idx, expand_ratio=spec.expand_ratio
            )

        super().__init__(spec, linear_recurrent_blocks(spec, mixer))
        # Unused bounds take no gradient: DDP must not wait for one.
        self.lower_bounds = nn.Parameter(torch.zeros(spec.num_layers, spec.hidden_size), requires_grad=spec.use_lower_bound)
        self.lower_bounds._no_weight_decay = True  # type: ignore[attr-defined]
        self.use_lower_bound = spec.use_lower_bound

    def extra_inputs(self, layer_idx: int) -> tuple[Tensor, ...]:
        if not self.use_lower_bound:
            return ()
        shares = self.lower_bounds.softmax(0, dtype=torch.float32)
        return (shares[1 : layer_idx + 1].sum(0),)

    def init_module(self, module: nn.Module) -> None:
        """Start with mixer projections Xavier-uniform with gain 2^-2.5; the rest N(0, 0.02^2), MLP outputs scaled by depth; no
        lower bounds."""
        init_linear_recurrent_(module, len(self.layers))
        if module is self:
            nn.init.zeros_(self.lower_bounds)
