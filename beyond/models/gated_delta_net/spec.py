"""Gated DeltaNet: the spec."""

from typing import Literal

from models.spec_parts import OutputGate, WithDeltaRule, strict


@strict
class GatedDeltaNetSpec(WithDeltaRule):
    """Gated DeltaNet with short convolutions and an output gate. A head has keys of `head_dim` channels and values
    of twice as many; keys have hidden_size / 2 channels in all, so that mixer and state are as large as DeltaNet's."""

    kind: Literal["gated_delta_net"] = "gated_delta_net"
    output_gate_activation: OutputGate = "silu"

    EXPAND_V = 2

    @property
    def hopper_refused(self) -> str:
        small = f"with keys of {self.head_dim} channels fla's gated delta rule reads beyond its arrays"
        return small if self.head_dim < 64 else ""

    @property
    def mixer_params(self) -> int:
        d = self.hidden_size
        return 4 * d * d + 2 * (d + 1) * self.num_heads + self.conv_params + 2 * self.head_dim
