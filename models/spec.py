"""What a model is, without torch: one frozen, validated dataclass per architecture.

A spec is part of a run's identity and round-trips through JSON (`spec.json` of a run folder). The torch modules and
their Hugging Face configurations are built from it in the file of the same architecture.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", strict=True)
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]

ForgetGate = Literal["full", "bias_only", "fixed", "none"]


def swiglu_width(hidden_size: int, mlp_ratio: float) -> int:
    """Width m of a SwiGLU MLP: int(d * ratio * 2/3) rounded up to a multiple of 256 (section 3.1 of the released
    setup)."""
    return 256 * -(-int(hidden_size * mlp_ratio * 2 / 3) // 256)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ForgettingTransformerSpec:
    """FoX and Transformer, Pro and LLaMA: one attention block with every switch of the paper (Fig. 1, Table 3).

    `forget_gate`: "full" sigmoid(w.x_t + b), "bias_only" sigmoid(b) learned, "fixed" sigmoid(b) constant, "none"
    softmax attention. `decay_time_min`/`decay_time_max` (tokens) set the initial b of the two constant gates (Fig.
    7). `mlp_width` overrides the SwiGLU width that follows from `mlp_ratio` (in small models rounding up to 256 would
    dominate). `prune_log_tolerance`: log(eps) of adaptive computation pruning, e.g. -10; None computes every tile. It
    changes the result by less than eps, but it is part of the spec because the ACP paper compares the two.
    """

    kind: Literal["forgetting_transformer"] = "forgetting_transformer"
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    mlp_ratio: PositiveFloat = 4.0
    mlp_width: PositiveInt | None = None
    forget_gate: ForgetGate = "full"
    decay_time_min: PositiveFloat | None = None
    decay_time_max: PositiveFloat | None = None
    use_rope: bool = False
    rope_base: PositiveFloat = 500000.0
    use_k_shift: bool = False
    use_v_shift: bool = False
    qk_norm: bool = False
    qk_norm_share_param_across_head: bool = True
    use_output_gate: bool = False
    use_output_norm: bool = False
    window_size: PositiveInt | None = None
    prune_log_tolerance: float | None = None
    norm_eps: PositiveFloat = 1e-6
    initializer_range: PositiveFloat = 0.02

    @model_validator(mode="after")
    def _check(self) -> "ForgettingTransformerSpec":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.head_dim not in (16, 32, 64, 128):
            raise ValueError(f"head_dim {self.head_dim} (hidden_size / num_heads) must be 16, 32, 64 or 128")
        constant_gate = self.forget_gate in ("bias_only", "fixed")
        if constant_gate != (self.decay_time_min is not None and self.decay_time_max is not None):
            raise ValueError(
                f"forget_gate {self.forget_gate!r} with decay_time_min {self.decay_time_min} and decay_time_max "
                f"{self.decay_time_max}: give both decay times with 'bias_only' and 'fixed', and neither otherwise"
            )
        if self.prune_log_tolerance is not None and self.forget_gate == "none":
            raise ValueError("prune_log_tolerance needs a forget gate; forget_gate is 'none'")
        return self

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def intermediate_size(self) -> int:
        return self.mlp_width or swiglu_width(self.hidden_size, self.mlp_ratio)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Mamba2Spec:
    """Mamba-2 without MLPs. `num_layers` counts mixer layers: twice the blocks of the other models (the paper's 24
    are 48)."""

    kind: Literal["mamba2"] = "mamba2"
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    head_dim: PositiveInt = 64
    state_size: PositiveInt = 128
    expand: PositiveInt = 2
    conv_size: PositiveInt = 4
    norm_eps: PositiveFloat = 1e-5

    @property
    def num_heads(self) -> int:
        return self.expand * self.hidden_size // self.head_dim

    @model_validator(mode="after")
    def _check(self) -> "Mamba2Spec":
        if self.expand * self.hidden_size % self.head_dim:
            raise ValueError(
                f"expand * hidden_size {self.expand * self.hidden_size} is not a multiple of head_dim {self.head_dim}"
            )
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HGRN2Spec:
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
    def intermediate_size(self) -> int:
        return self.mlp_width or swiglu_width(self.hidden_size, self.mlp_ratio)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DeltaNetSpec:
    """DeltaNet with short convolutions, hidden_size / head_dim heads, no output gate."""

    kind: Literal["delta_net"] = "delta_net"
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    head_dim: PositiveInt = 128
    conv_size: PositiveInt = 4
    mlp_ratio: PositiveFloat = 4.0
    mlp_width: PositiveInt | None = None
    norm_eps: PositiveFloat = 1e-6

    @model_validator(mode="after")
    def _check(self) -> "DeltaNetSpec":
        if self.hidden_size % self.head_dim:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of head_dim {self.head_dim}")
        return self

    @property
    def intermediate_size(self) -> int:
        return self.mlp_width or swiglu_width(self.hidden_size, self.mlp_ratio)


ModelSpec = Annotated[ForgettingTransformerSpec | Mamba2Spec | HGRN2Spec | DeltaNetSpec, Field(discriminator="kind")]
