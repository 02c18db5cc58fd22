"""HGRN2 (arXiv 2404.07904): flash-linear-attention's layer in our skeleton, the paper's set-up (Appendix B).

As in the released code, the layer-wise lower bounds exist but do not reach the mixer, unless `use_lower_bound` asks for it."""

from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
import torch
from fla.layers.hgrn2 import HGRN2Attention
from torch import Tensor, nn

from models.backbone import is_plain
from models.hgrn2.spec import HGRN2Spec


class HGRN2Mixer(HGRN2Attention):
    """fla's layer, which computes the output projection together with the norm before it, from its weight alone."""

    def forward(self, *given: Any, **options: Any) -> Any:
        """Return what fla's layer does. ValueError for an output projection that is more than its weight."""
        if not is_plain(self.o_proj):
            met = f"o_proj of layer {self.layer_idx}, a {type(self.o_proj).__name__}, has an adapter or a hook"
            raise ValueError(f"{met}: HGRN2 takes no more of it than its weight; merge the adapter, or leave out o_proj")
        return super().forward(*given, **options)


class Model(RecurrentModel):
    """Backbone with the lower bounds of the forget gates, (layers, d)."""

    def __init__(self, spec: HGRN2Spec) -> None:
        super().__init__(spec, HGRN2Mixer, expand_ratio=spec.expand_ratio)
        # Unused bounds take no gradient: DDP must not wait for one.
        self.lower_bounds = nn.Parameter(torch.zeros(spec.num_layers, spec.hidden_size), requires_grad=spec.use_lower_bound)

    def extra_inputs(self, layer_idx: int) -> tuple[Tensor, ...]:
        if not self.spec.use_lower_bound:
            return ()
        return (self.lower_bounds.softmax(0, dtype=torch.float32)[1 : layer_idx + 1].sum(0),)

    def init_module(self, module: nn.Module) -> None:
        """Start without lower bounds."""
        super().init_module(module)
        if module is self:
            nn.init.zeros_(self.lower_bounds)
