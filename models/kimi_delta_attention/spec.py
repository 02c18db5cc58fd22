"""Kimi Delta Attention: the spec."""

from typing import Literal

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from models.spec_parts import STRICT, PositiveFloat, PositiveInt, WithMLP, head_params, mlp_params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class KimiDeltaAttentionSpec(WithMLP):
    """Kimi Delta Attention with short convolutions, hidden_size / head_dim heads and an output gate. Both gates are maps of
    rank `head_dim`."""

    kind: Literal["kimi_delta_attention"] = "kimi_delta_attention"
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    head_dim: PositiveInt = 128
    conv_size: PositiveInt = 4
    mlp_ratio: PositiveFloat = 4.0
    mlp_width: PositiveInt | None = None
    norm_eps: PositiveFloat = 1e-6

    @model_validator(mode="after")
    def _check(self) -> "KimiDeltaAttentionSpec":
        if self.hidden_size % self.head_dim:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of head_dim {self.head_dim}")
        return self

    @property
    def num_heads(self) -> int:
        return self.hidden_size // self.head_dim

    @property
    def num_params(self) -> int:
        """Count the parameters as the paper does: without the input embedding, with the output head."""
        d = self.hidden_size
        gates = 4 * d * self.head_dim + 2 * d  # of the state with its bias, of the output with its bias
        mixer = 4 * d * d + gates + (d + 1) * self.num_heads + 3 * d * self.conv_size + self.head_dim
        return head_params(self.vocab_size, d) + self.num_layers * (mlp_params(d, self.intermediate_size) + mixer)

    def flops_per_token(self, seq_len: int) -> int:
        """Return the FLOPs of a forward pass per token, the same at any `seq_len`: 6 for each number of the state, as in Table
        6."""
        return 2 * self.num_params + 6 * self.num_layers * self.hidden_size * self.head_dim

    def state_size(self, seq_len: int) -> int:
        """Count the numbers kept per sequence for decoding, over all layers, the convolutions' inputs included."""
        return self.num_layers * self.hidden_size * (self.head_dim + 3 * self.conv_size)
