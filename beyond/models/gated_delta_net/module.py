"""Gated DeltaNet (arXiv 2412.06464): flash-linear-attention's layer in our backbone.

Initialised like other recurrent models."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
from fla.layers.gated_deltanet import GatedDeltaNet

from beyond.models.gated_delta_net.spec import GatedDeltaNetSpec


class Model(RecurrentModel):
    decay_rates = (0, 16)  # as in fla

    def __init__(self, spec: GatedDeltaNetSpec) -> None:
        sizes = {name: getattr(spec, name) for name in ("head_dim", "num_heads", "conv_size")}
        super().__init__(
            spec, GatedDeltaNet, expand_v=spec.EXPAND_V, output_gate_activation=spec.output_gate_activation, **sizes
        )
