"""Mamba-2: the spec."""

from typing import Literal

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from models.spec_parts import STRICT, ModelKind, PositiveFloat, PositiveInt, head_params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Mamba2Spec(ModelKind):
    """Mamba-2 without MLPs. `num_layers` counts mixer layers: twice the blocks of the other models (the paper's 24
    are 48)."""

    kind: Literal["mamba2"] = "mamba2"
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    head_dim: PositiveInt = 64
    ssm_state_size: PositiveInt = 128
    expand: PositiveInt = 2
    conv_size: PositiveInt = 4
    norm_eps: PositiveFloat = 1e-5

    @model_validator(mode="after")
    def _check(self) -> "Mamba2Spec":
        if self.expand * self.hidden_size % self.head_dim:
            raise ValueError(
                f"expand * hidden_size {self.expand * self.hidden_size} is not a multiple of head_dim {self.head_dim}"
            )
        return self

    @property
    def num_heads(self) -> int:
        return self.expand * self.hidden_size // self.head_dim

    @property
    def num_params(self) -> int:
        """Count the parameters as the paper does: without the input embedding, with the output head."""
        d, inner = self.hidden_size, self.expand * self.hidden_size
        convolved = inner + 2 * self.ssm_state_size
        in_proj = d * (inner + convolved + self.num_heads)
        mixer = in_proj + convolved * (self.conv_size + 1) + 3 * self.num_heads + inner + inner * d
        return head_params(self.vocab_size, d) + self.num_layers * (d + mixer)

    def flops_per_token(self, seq_len: int) -> int:
        """Return the FLOPs of a forward pass per token (Table 6), the same at any `seq_len`. The recurrence counts layers in
        pairs, as the paper's 24 blocks."""
        return 2 * self.num_params + 20 * (self.num_layers // 2) * self.hidden_size * self.ssm_state_size

    def state_size(self, seq_len: int) -> int:
        """Count the numbers kept per sequence for decoding, over all layers, the convolution's inputs included."""
        inner = self.expand * self.hidden_size
        return self.num_layers * (inner * self.ssm_state_size + (inner + 2 * self.ssm_state_size) * self.conv_size)
