"""Gated linear attention with one gate per head: flash-linear-attention's layer in our skeleton."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
from fla.layers.simple_gla import SimpleGatedLinearAttention

from models.simple_gla.spec import SimpleGLASpec


class Model(RecurrentModel):
    def __init__(self, spec: SimpleGLASpec) -> None:
        heads = spec.num_heads
        super().__init__(spec, SimpleGatedLinearAttention, num_heads=heads, expand_k=0.5, use_short_conv=False)
