"""PaTH-FoX: the spec."""

from typing import Literal

from models.spec_parts import PositiveInt, WithAttentionHeads, strict


@strict
class PathFoxSpec(WithAttentionHeads):
    """PaTH attention with a forget gate, otherwise as FoX (LLaMA). Each token transforms the keys before it along one direction
    per head, which a low-rank projection and a short convolution compute; a scalar sets how strongly."""

    kind: Literal["path_fox"] = "path_fox"
    conv_size: PositiveInt = 3

    RANK = 32
    family = "attention with a forget gate"

    @property
    def has_places(self) -> bool:
        return False

    @property
    def mixer_params(self) -> int:
        d = self.hidden_size
        return 4 * d * d + (2 * self.RANK + self.conv_size) * d + 2 * (d + 1) * self.num_heads

    def mixing_flops(self, seq_len: int) -> int:
        """Return 8 * layers * d FLOPs for each key that a query sees, L/2 on average: four for its score and value, and four
        for the transform between the two."""
        return 8 * self.num_layers * self.hidden_size * seq_len // 2

    def state_size(self, seq_len: int) -> int:
        return self.num_layers * (seq_len * (2 * self.hidden_size + self.num_heads) + self.conv_size * self.hidden_size)
