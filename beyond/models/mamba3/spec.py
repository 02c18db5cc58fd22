"""Mamba-3: the spec."""

from typing import Literal

from models.mamba2.spec import WithStateSpace
from models.spec_parts import WithMLP, strict


@strict
class Mamba3Spec(WithStateSpace, WithMLP):
    """Mamba-3 with one input and one output per head (SISO), each layer followed by an MLP. Half of the keys' channels are
    rotated in pairs, each pair by one angle."""

    kind: Literal["mamba3"] = "mamba3"

    compiles = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ssm_state_size % 4:
            raise ValueError(f"ssm_state_size {self.ssm_state_size} is not a multiple of 4")

    @property
    def mixer_params(self) -> int:
        d, inner, heads, n = self.hidden_size, self.inner_size, self.num_heads, self.ssm_state_size
        return d * (3 * inner + 2 * n + 3 * heads + n // 4) + 2 * n * (heads + 1) + 2 * heads

    def mixing_flops(self, seq_len: int) -> int:
        return 5 * self.num_layers * self.inner_size * self.ssm_state_size  # as Mamba-2: 5 for each element of the state

    def state_size(self, seq_len: int) -> int:
        keys_and_angles = self.num_heads * (self.ssm_state_size + self.ssm_state_size // 4)
        return self.num_layers * (self.inner_size * (self.ssm_state_size + 1) + keys_and_angles)
