"""HGRN2: the spec."""

from typing import Literal

from models.spec_parts import PositiveFloat, PositiveInt, WithMLP, strict


@strict
class HGRN2Spec(WithMLP):
    """HGRN2 with hidden_size / expand_ratio heads. `use_lower_bound`: pass the mixer its layer's lower bound.
    `output_norm_eps`: eps of the norm behind the recurrence; None: `norm_eps`, as in the authors' models. The default
    is what fla 0.6.0 has whatever the spec says, with which the first runs were trained."""

    kind: Literal["hgrn2"] = "hgrn2"
    expand_ratio: PositiveInt = 128
    use_lower_bound: bool = False
    output_norm_eps: PositiveFloat | None = 1e-5

    def __post_init__(self) -> None:
        if self.hidden_size % self.expand_ratio:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of expand_ratio {self.expand_ratio}")

    @property
    def mixer_params(self) -> int:
        d = self.hidden_size
        return 4 * d * d + d + d  # with its norm and its lower bounds

    def mixing_flops(self, seq_len: int) -> int:
        return 5 * self.state_size(seq_len)

    def state_size(self, seq_len: int) -> int:
        return self.num_layers * self.hidden_size * self.expand_ratio
