"""HGRN2: the spec."""

from typing import Literal

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from models.spec_parts import STRICT, PositiveFloat, PositiveInt, WithMLP, head_params, mlp_params


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HGRN2Spec(WithMLP):
    """HGRN2 with state expansion `expand_ratio`, hence hidden_size / expand_ratio heads. The layer-wise lower bounds
    are allocated but not handed to the mixer unless `use_lower_bound` is set, as in the released code."""

    kind: Literal["hgrn2"] = "hgrn2"
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    expand_ratio: PositiveInt = 128
    mlp_ratio: PositiveFloat = 4.0
    mlp_width: PositiveInt | None = None
    use_lower_bound: bool = False
    norm_eps: PositiveFloat = 1e-6

    @model_validator(mode="after")
    def _check(self) -> "HGRN2Spec":
        if self.hidden_size % self.expand_ratio:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of expand_ratio {self.expand_ratio}")
        return self

    @property
    def num_params(self) -> int:
        """Count the parameters as the paper does: without the input embedding, with the output head, and with the lower
        bounds."""
        d = self.hidden_size
        mixer, lower_bounds = 4 * d * d + d, d
        layer = mlp_params(d, self.intermediate_size) + mixer + lower_bounds
        return head_params(self.vocab_size, d) + self.num_layers * layer

    def flops_per_token(self, seq_len: int) -> int:
        """Return the FLOPs of a forward pass per token (Table 6), the same at any `seq_len`."""
        return 2 * self.num_params + 5 * self.num_layers * self.hidden_size * self.expand_ratio

    def state_size(self, seq_len: int) -> int:
        """Count the numbers kept per sequence for decoding, over all layers."""
        return self.num_layers * self.hidden_size * self.expand_ratio
