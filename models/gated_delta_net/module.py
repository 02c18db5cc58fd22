"""Gated DeltaNet (arXiv 2412.06464): flash-linear-attention's layer in our skeleton, begun as other recurrent models."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import FlaMixer, RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
import torch
from fla.layers.gated_deltanet import GatedDeltaNet
from torch import nn

from models.backbone import start_with, step_size_bias
from models.gated_delta_net.spec import GatedDeltaNetSpec


class GatedDeltaNetMixer(FlaMixer, GatedDeltaNet):
    """fla's layer behind the skeleton's mixer signature."""


class Model(RecurrentModel):
    def __init__(self, spec: GatedDeltaNetSpec) -> None:
        sizes = {name: getattr(spec, name) for name in ("head_dim", "num_heads", "conv_size")}
        super().__init__(spec, GatedDeltaNetMixer, expand_v=spec.EXPAND_V, **sizes)

    def init_module(self, module: nn.Module) -> None:
        """Start with decay rates uniform in [0, 16], step sizes log-uniform in [1e-3, 1e-1], as in fla."""
        super().init_module(module)
        if isinstance(module, GatedDeltaNetMixer):
            start_with(module.A_log, torch.empty(module.num_heads).uniform_(0, 16).log())
            start_with(module.dt_bias, step_size_bias(module.num_heads))
