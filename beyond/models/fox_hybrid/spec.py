"""The hybrid of Gated DeltaNet and FoX: the spec."""

from typing import Any, Literal

from beyond.models.gated_delta_net.spec import GatedDeltaNetSpec
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.spec_parts import PositiveFloat, PositiveInt, WithMLP, strict


@strict
class FoxHybridSpec(WithMLP):
    """Layers of Gated DeltaNet (`head_dim`, `conv_size`, `mlp_width`), of which every `fox_every`-th is replaced by one of FoX
    (Pro) (`num_heads`, `fox_mlp_width`), without a window or RoPE."""

    kind: Literal["fox_hybrid"] = "fox_hybrid"
    num_heads: PositiveInt
    fox_every: PositiveInt = 4
    fox_mlp_ratio: PositiveFloat = 3.5
    fox_mlp_width: PositiveInt | None = None
    head_dim: PositiveInt = 128
    conv_size: PositiveInt = 4

    family = "attention with a forget gate"

    def __post_init__(self) -> None:
        if self.num_layers % self.fox_every or self.fox_every == 1:
            raise ValueError(f"fox_every {self.fox_every} with num_layers {self.num_layers}: give a divisor of it above 1")
        assert self.fox and self.recurrent  # their own checks

    @property
    def fox(self) -> ForgettingTransformerSpec:
        """Spec of the FoX layers, as in FoX (Pro); `num_layers` counts only these."""
        pro = ("use_k_shift", "use_v_shift", "qk_norm", "use_output_gate", "use_output_norm")
        values: dict[str, Any] = {name: getattr(self, name) for name in ("vocab_size", "hidden_size", "num_heads", "norm_eps")}
        values |= dict(dict.fromkeys(pro, True), mlp_ratio=self.fox_mlp_ratio, mlp_width=self.fox_mlp_width)
        return ForgettingTransformerSpec(**values, num_layers=self.num_layers // self.fox_every)

    @property
    def recurrent(self) -> GatedDeltaNetSpec:
        """Spec of the other layers, as in Gated DeltaNet; `num_layers` counts only these."""
        shared = ("vocab_size", "hidden_size", "norm_eps", "mlp_ratio", "mlp_width", "head_dim", "conv_size")
        same = {name: getattr(self, name) for name in shared}
        return GatedDeltaNetSpec(**same, num_layers=self.num_layers - self.num_layers // self.fox_every)

    @property
    def hopper_refused(self) -> str:
        return self.recurrent.hopper_refused

    @property
    def num_params(self) -> int:
        return self.fox.num_params + self.recurrent.num_layers * self.recurrent.layer_params

    def mixing_flops(self, seq_len: int) -> int:
        return self.fox.mixing_flops(seq_len) + self.recurrent.mixing_flops(seq_len)

    def state_size(self, seq_len: int) -> int:
        return self.fox.state_size(seq_len) + self.recurrent.state_size(seq_len)
