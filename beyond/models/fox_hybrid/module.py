"""Gated DeltaNet with FoX in every fourth layer: few layers see all tokens, as in models that are built for serving."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
from fla.layers.gated_deltanet import GatedDeltaNet

from beyond.models.fox_hybrid.spec import FoxHybridSpec
from models.backbone import Block
from models.forgetting_transformer.module import ForgettingAttention


class Model(RecurrentModel):
    decay_rates = (0, 16)  # as in fla

    def __init__(self, spec: FoxHybridSpec) -> None:
        fox, recurrent, places = spec.fox, spec.recurrent, range(spec.fox_every - 1, spec.num_layers, spec.fox_every)
        sizes = (spec.hidden_size, fox.intermediate_size, spec.norm_eps)
        others = {i: Block(ForgettingAttention(fox, i), *sizes) for i in places}
        same = {name: getattr(recurrent, name) for name in ("head_dim", "num_heads", "conv_size")}
        super().__init__(spec, GatedDeltaNet, others, expand_v=recurrent.EXPAND_V, **same)
