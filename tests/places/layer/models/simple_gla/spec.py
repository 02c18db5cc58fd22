"""Gated linear attention with one gate per head: the spec."""

from typing import Literal

from models.spec_parts import PositiveInt, WithMLP, strict


@strict
class SimpleGLASpec(WithMLP):
    """Gated linear attention with one gate per head, and keys half as wide as values."""

    kind: Literal["simple_gla"] = "simple_gla"
    num_heads: PositiveInt = 2

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of twice num_heads, {2 * self.num_heads}")

    @property
    def mixer_params(self) -> int:
        d, heads = self.hidden_size, self.num_heads
        return 4 * d * d + (d + 1) * heads + d // heads

    def mixing_flops(self, seq_len: int) -> int:
        return 5 * self.state_size(seq_len)

    def state_size(self, seq_len: int) -> int:
        return self.num_layers * self.hidden_size**2 // (2 * self.num_heads)
