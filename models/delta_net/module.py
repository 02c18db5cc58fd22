"""DeltaNet (arXiv 2406.06484): flash-linear-attention's layer in our backbone, with the paper's settings (Appendix B)."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
from fla.layers.delta_net import DeltaNet

from models.delta_net.spec import DeltaNetSpec


class Model(RecurrentModel):
    def __init__(self, spec: DeltaNetSpec) -> None:
        super().__init__(spec, DeltaNet, num_heads=spec.num_heads, conv_size=spec.conv_size)
