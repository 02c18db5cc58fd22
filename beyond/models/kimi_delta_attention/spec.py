"""Kimi Delta Attention: the spec."""

from typing import Literal

from models.spec_parts import OutputGate, WithDeltaRule, strict


@strict
class KimiDeltaAttentionSpec(WithDeltaRule):
    """Kimi Delta Attention with short convolutions, hidden_size / head_dim heads, output gate; gates are of rank `head_dim`."""

    kind: Literal["kimi_delta_attention"] = "kimi_delta_attention"
    output_gate_activation: OutputGate = "sigmoid"

    @property
    def mixer_params(self) -> int:
        d = self.hidden_size
        gates = 4 * d * self.head_dim + 2 * d  # of the state with its bias, of the output with its bias
        return 4 * d * d + gates + (d + 1) * self.num_heads + self.conv_params + self.head_dim
