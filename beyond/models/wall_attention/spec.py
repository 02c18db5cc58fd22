"""Wall attention: the spec."""

from typing import Literal

from models.spec_parts import PositiveInt, WithMLP, strict


@strict
class WallAttentionSpec(WithMLP):
    """Softmax attention without position encoding, in which each channel of a key decays by its own data-dependent forget gate,
    in the block of FoX (LLaMA)."""

    kind: Literal["wall_attention"] = "wall_attention"
    num_heads: PositiveInt

    family = "attention with a forget gate"

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.hidden_size // self.num_heads > 256:
            raise ValueError(f"head_dim {self.hidden_size // self.num_heads} (hidden_size / num_heads) must be 256 at most")

    @property
    def has_places(self) -> bool:
        return False

    @property
    def mixer_params(self) -> int:
        return 5 * self.hidden_size**2 + self.hidden_size

    def mixing_flops(self, seq_len: int) -> int:
        return 2 * self.num_layers * self.hidden_size * seq_len

    def state_size(self, seq_len: int) -> int:
        return 2 * self.num_layers * self.hidden_size * seq_len
