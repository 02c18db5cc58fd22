"""Samba: the spec."""

from typing import Literal

from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.spec_parts import ModelKind, PositiveFloat, PositiveInt, mlp_params, strict, swiglu_width


@strict
class SambaSpec(ModelKind):
    """Samba (arXiv 2406.07522): alternating layers of Mamba, which is first, and of sliding-window attention, each followed by
    a SwiGLU MLP. `mlp_width` is its width after attention, `mamba_mlp_width` after Mamba."""

    kind: Literal["samba"] = "samba"
    num_heads: PositiveInt
    window_size: PositiveInt = 2048
    rope_base: PositiveFloat = 500000.0
    mlp_ratio: PositiveFloat = 4.0
    mlp_width: PositiveInt | None = None
    mamba_mlp_ratio: PositiveFloat = 3.0
    mamba_mlp_width: PositiveInt | None = None
    ssm_state_size: PositiveInt = 16
    expand: PositiveInt = 2
    conv_size: PositiveInt = 4
    norm_eps: PositiveFloat = 1e-5

    def __post_init__(self) -> None:
        if self.num_layers % 2:
            raise ValueError(f"num_layers {self.num_layers} is odd: Samba's layers come in pairs")
        assert self.attention  # its own checks

    @property
    def has_places(self) -> bool:
        return False

    @property
    def attention(self) -> ForgettingTransformerSpec:
        """Spec of the attention layers, as in the Transformer with the same window; `num_layers` counts only these."""
        shared = ("vocab_size", "hidden_size", "num_heads", "mlp_ratio", "mlp_width", "rope_base", "window_size", "norm_eps")
        same = {name: getattr(self, name) for name in shared}
        return ForgettingTransformerSpec(**same, num_layers=self.num_layers // 2, forget_gate="none", use_rope=True)

    @property
    def inner_size(self) -> int:
        return self.expand * self.hidden_size

    @property
    def dt_rank(self) -> int:
        return -(-self.hidden_size // 16)

    @property
    def mamba_intermediate_size(self) -> int:
        return self.mamba_mlp_width or swiglu_width(self.hidden_size, self.mamba_mlp_ratio)

    @property
    def num_params(self) -> int:
        d, inner, n = self.hidden_size, self.inner_size, self.ssm_state_size
        scan = inner * (self.dt_rank + 2 * n) + (self.dt_rank + 1) * inner + inner * n + inner
        mamba = 3 * d * inner + inner * (self.conv_size + 1) + scan + mlp_params(d, self.mamba_intermediate_size)
        return self.attention.num_params + self.num_layers // 2 * mamba

    def mixing_flops(self, seq_len: int) -> int:
        """Return the FLOPs of attention inside its window, and nine per token, channel and state for the scan (arXiv
        2312.00752); our own count, as the paper has none."""
        scan = self.num_layers // 2 * 9 * self.inner_size * self.ssm_state_size
        return self.attention.mixing_flops(seq_len) + scan

    def state_size(self, seq_len: int) -> int:
        mamba = self.num_layers // 2 * self.inner_size * (self.ssm_state_size + self.conv_size)
        return self.attention.state_size(seq_len) + mamba
