"""HGRN2 (arXiv 2404.07904): flash-linear-attention's layer in our backbone, with the paper's settings (Appendix B).

As in the released code, the layer-wise lower bounds exist but are not passed to the mixer, unless `use_lower_bound` is set."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import FusedOutput, RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
import torch
from fla.layers.hgrn2 import HGRN2Attention
from torch import Tensor, nn

from models.hgrn2.spec import HGRN2Spec


class HGRN2Mixer(FusedOutput, HGRN2Attention):
    """fla's layer."""


class Model(RecurrentModel):
    """Backbone with the lower bounds of the forget gates, (layers, d)."""

    def __init__(self, spec: HGRN2Spec) -> None:
        super().__init__(spec, HGRN2Mixer, expand_ratio=spec.expand_ratio)
        # Unused bounds require no grad: DDP must not wait for it.
        self.lower_bounds = nn.Parameter(torch.zeros(spec.num_layers, spec.hidden_size), requires_grad=spec.use_lower_bound)

    def extra_inputs(self, layer_idx: int) -> tuple[Tensor, ...]:
        if not self.spec.use_lower_bound:
            return ()
        return (self.lower_bounds.softmax(0, dtype=torch.float32)[1 : layer_idx + 1].sum(0),)

    def init_module(self, module: nn.Module) -> None:
        """Initialise the parameters of the lower bounds with zeros."""
        super().init_module(module)
        if module is self:
            nn.init.zeros_(self.lower_bounds)
