"""Gated linear attention: the spec."""

from typing import Literal

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from models.spec_parts import STRICT, PositiveFloat, PositiveInt, WithMLP, head_params, mlp_params

KEYS_PER_VALUE = 0.5
GATE_RANK = 16


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GatedLinearAttentionSpec(WithMLP):
    """Gated linear attention with keys half as wide as values, and gates of low rank."""

    kind: Literal["gated_linear_attention"] = "gated_linear_attention"
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt = 2
    mlp_ratio: PositiveFloat = 4.0
    mlp_width: PositiveInt | None = None
    norm_eps: PositiveFloat = 1e-6

    @model_validator(mode="after")
    def _check(self) -> "GatedLinearAttentionSpec":
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of twice num_heads, {2 * self.num_heads}")
        return self

    @property
    def key_size(self) -> int:
        return int(self.hidden_size * KEYS_PER_VALUE)

    @property
    def num_params(self) -> int:
        """Count the parameters as the paper does: without the input embedding, with the output head."""
        d, keys = self.hidden_size, self.key_size
        mixer = 3 * d * d + 2 * d * keys + GATE_RANK * (d + keys) + keys + d // self.num_heads
        return head_params(self.vocab_size, d) + self.num_layers * (mlp_params(d, self.intermediate_size) + mixer)

    def flops_per_token(self, seq_len: int) -> int:
        """Return the FLOPs of a forward pass per token (Table 6), the same at any `seq_len`."""
        return 2 * self.num_params + 5 * self.state_size(seq_len)

    def state_size(self, seq_len: int) -> int:
        """Count the numbers kept per sequence for decoding, over all layers."""
        return self.num_layers * self.key_size * self.hidden_size // self.num_heads
