"""Mamba-2: the spec, and the base that it shares with Mamba-3's."""

from typing import Literal

from models.spec_parts import ModelKind, PositiveFloat, PositiveInt, strict


@strict
class WithStateSpace(ModelKind):
    """Base of the specs of state-space layers: `expand` * hidden_size channels in heads of `head_dim`, with a state of
    `ssm_state_size` for each channel."""

    head_dim: PositiveInt = 64
    ssm_state_size: PositiveInt = 128
    expand: PositiveInt = 2
    norm_eps: PositiveFloat = 1e-5

    def __post_init__(self) -> None:
        if self.inner_size % self.head_dim:
            raise ValueError(f"expand * hidden_size {self.inner_size} is not a multiple of head_dim {self.head_dim}")

    @property
    def inner_size(self) -> int:
        return self.expand * self.hidden_size

    @property
    def num_heads(self) -> int:
        return self.inner_size // self.head_dim


@strict
class Mamba2Spec(WithStateSpace):
    """Mamba-2 without MLPs. `num_layers` counts mixer layers: twice the blocks of the other models (the paper's 24 are 48)."""

    kind: Literal["mamba2"] = "mamba2"
    conv_size: PositiveInt = 4

    @property
    def convolved(self) -> int:
        """Number of convolved channels."""
        return self.inner_size + 2 * self.ssm_state_size

    @property
    def layer_params(self) -> int:
        d, inner, heads = self.hidden_size, self.inner_size, self.num_heads
        in_proj = d * (inner + self.convolved + heads)
        return d + in_proj + self.convolved * (self.conv_size + 1) + 3 * heads + inner + inner * d

    def mixing_flops(self, seq_len: int) -> int:
        return 20 * (self.num_layers // 2) * self.hidden_size * self.ssm_state_size  # layers in pairs, the paper's 24 blocks

    def state_size(self, seq_len: int) -> int:
        return self.num_layers * (self.inner_size * self.ssm_state_size + self.convolved * self.conv_size)
