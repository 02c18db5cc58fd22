"""Gated linear attention: the spec."""

from typing import Literal

from models.spec_parts import WithMatrixState, strict


@strict
class GatedLinearAttentionSpec(WithMatrixState):
    """Gated linear attention with an output gate. A head has keys of `head_dim` channels and values of twice as many; keys have
    hidden_size / 2 channels in all, each with a forget gate, which a low-rank projection computes."""

    kind: Literal["gated_linear_attention"] = "gated_linear_attention"

    EXPAND_V = 2
    GATE_RANK = 16

    @property
    def mixer_params(self) -> int:
        d, keys = self.hidden_size, self.hidden_size // 2
        gates = self.GATE_RANK * (d + keys) + keys
        return 4 * d * d + gates + 2 * self.head_dim

    def mixing_flops(self, seq_len: int) -> int:
        return 5 * self.state_size(seq_len)
