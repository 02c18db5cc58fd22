"""Gated linear attention: the spec."""

from typing import Literal

from models.spec_parts import PositiveInt, WithMLP, strict

KEYS_PER_VALUE = 0.5
GATE_RANK = 16


@strict
class GatedLinearAttentionSpec(WithMLP):
    """Gated linear attention with keys half as wide as values, and gates of low rank."""

    kind: Literal["gated_linear_attention"] = "gated_linear_attention"
    num_heads: PositiveInt = 2

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of twice num_heads, {2 * self.num_heads}")

    @property
    def key_size(self) -> int:
        return int(self.hidden_size * KEYS_PER_VALUE)

    @property
    def mixer_params(self) -> int:
        d, keys = self.hidden_size, self.key_size
        return 3 * d * d + 2 * d * keys + GATE_RANK * (d + keys) + keys + d // self.num_heads

    def mixing_flops(self, seq_len: int) -> int:
        return 5 * self.state_size(seq_len)

    def state_size(self, seq_len: int) -> int:
        return self.num_layers * self.key_size * self.hidden_size // self.num_heads
