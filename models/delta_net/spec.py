"""DeltaNet: the spec."""

from typing import Literal

from models.spec_parts import WithDeltaRule, strict


@strict
class DeltaNetSpec(WithDeltaRule):
    """DeltaNet with short convolutions, hidden_size / head_dim heads, no output gate."""

    kind: Literal["delta_net"] = "delta_net"

    fp32_refused = "fla's DeltaNet kernels refuse"

    @property
    def mixer_params(self) -> int:
        d = self.hidden_size
        return 4 * d * d + d * self.num_heads + self.conv_params + self.head_dim
