"""FoX, Transformer and stick-breaking Transformer, Pro and LLaMA: the spec."""

from typing import Literal

from models.spec_parts import OutputGate, PositiveFloat, PositiveInt, WithAttentionHeads, strict

ForgetGate = Literal["full", "bias_only", "fixed", "none"]


@strict
class ForgettingTransformerSpec(WithAttentionHeads):
    """FoX and Transformer, Pro and LLaMA: one attention block with every switch of the paper (Fig. 1, Table 3).

    `attention`: "stick_breaking" (arXiv 2410.17980) has no gate and needs no position encoding; with `stick_remainder` the
    weight that a token's keys leave over goes to its own value. `forget_gate`: "full" sigmoid(w.x_t + b), "bias_only"
    sigmoid(b) learned, "fixed" sigmoid(b) constant, "none" no gate. `decay_time_min`/`decay_time_max` (tokens) set the
    initial b: required for the two constant gates (Fig. 7); without them b of "full" starts at 0. `output_gate_activation`:
    "sigmoid" in the papers; "silu" is not in them. `mlp_width` overrides the
    SwiGLU width that follows from `mlp_ratio` (in small models rounding up to 256 would dominate). `window_size`: number of
    tokens that a token sees, itself included. `prune_log_tolerance`: log(eps) of adaptive computation pruning, e.g. -10;
    None computes every tile. It changes the result by less than eps, but is part of the spec because the ACP paper compares
    the two. `prune_tightly`: the same guarantee with another bound, which skips more
    (`kernels.forgetting_attention.pruning.tight`; not in the paper)."""

    kind: Literal["forgetting_transformer"] = "forgetting_transformer"
    attention: Literal["softmax", "stick_breaking"] = "softmax"
    stick_remainder: bool = False
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
    output_gate_activation: OutputGate = "sigmoid"
    use_output_norm: bool = False
    window_size: PositiveInt | None = None
    prune_log_tolerance: float | None = None
    prune_tightly: bool = False
    initializer_range: PositiveFloat = 0.02

    compiles = True
    family = "attention with a forget gate"  # unless forget_gate is "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        gate, least, most, tolerance = self.forget_gate, self.decay_time_min, self.decay_time_max, self.prune_log_tolerance
        given = (least is not None) + (most is not None)
        if given not in {"full": (0, 2), "bias_only": (2,), "fixed": (2,)}.get(gate, (0,)):
            raise ValueError(
                f"forget_gate {gate!r} with decay_time_min {least} and decay_time_max {most}: give both decay times with "
                "'bias_only' and 'fixed', both or neither with 'full', and neither otherwise"
            )
        if self.attention == "stick_breaking" and (gate != "none" or self.window_size is not None):
            raise ValueError(
                f"attention 'stick_breaking' with forget_gate {gate!r} and window_size {self.window_size}: it has neither; "
                "give forget_gate 'none' and no window"
            )
        if self.stick_remainder and self.attention != "stick_breaking":
            raise ValueError(f"stick_remainder needs attention 'stick_breaking'; attention is {self.attention!r}")
        if tolerance is not None and gate == "none":
            raise ValueError("prune_log_tolerance needs a forget gate; forget_gate is 'none'")
        if tolerance is not None and tolerance >= 0:
            raise ValueError(f"prune_log_tolerance {tolerance}: give the log of a share, below 0, e.g. -10")
        if self.output_gate_activation != "sigmoid" and not self.use_output_gate:
            raise ValueError(f"output_gate_activation {self.output_gate_activation!r} needs use_output_gate, which is False")
        if (least or 0) > (most or 0):
            raise ValueError(f"decay_time_min {least} is above decay_time_max {most}")
        if self.prune_tightly and tolerance is None:
            raise ValueError("prune_tightly needs prune_log_tolerance, the log of what a query may lose, e.g. -10")

    @property
    def mixer_params(self) -> int:
        d, heads = self.hidden_size, self.num_heads
        gate = {"full": heads * (d + 1), "bias_only": heads, "fixed": 0, "none": 0}[self.forget_gate]
        shifts = (self.use_k_shift + self.use_v_shift) * heads * d
        qk_norm = 2 * (self.head_dim if self.qk_norm_share_param_across_head else d) if self.qk_norm else 0
        return 4 * d * d + gate + shifts + qk_norm + self.use_output_gate * d * d + self.use_output_norm * d

    def mixing_flops(self, seq_len: int) -> int:
        """Return 4 * layers * d FLOPs for each key that a query sees: L/2 on average, fewer if a window is shorter than the
        sequence: the first `window_size` queries see half a window on average, the others a whole one."""
        per_key, window = 4 * self.num_layers * self.hidden_size, self.window_size
        if window is None or window >= seq_len:
            return per_key * seq_len // 2
        return int(per_key * (window * window / 2 + (seq_len - window) * window) / seq_len)

    def executed_flops_per_token(self, seq_len: int, pruned_share: float) -> int:
        """Return the FLOPs per token that are executed when `pruned_share` (0 to 1) of the tiles inside the causal mask and the
        window is skipped. Raises ValueError for another share, and for any but 0 without a forget gate."""
        if not 0 <= pruned_share <= 1:
            raise ValueError(f"pruned_share {pruned_share} is no share; give a number from 0 to 1")
        if pruned_share and self.forget_gate == "none":
            raise ValueError(f"pruned_share {pruned_share}: forget_gate is 'none', and nothing can be pruned without a gate")
        return 2 * self.num_params + round((1 - pruned_share) * self.mixing_flops(seq_len))

    @property
    def has_places(self) -> bool:
        return self.attention == "softmax" and self.window_size is None

    @property
    def prunes(self) -> bool:
        return self.prune_log_tolerance is not None

    def state_size(self, seq_len: int) -> int:
        length = seq_len if self.window_size is None else min(seq_len, self.window_size)
        per_token = 2 * self.hidden_size + (self.num_heads if self.forget_gate != "none" else 0)
        return self.num_layers * (length * per_token + self.hidden_size * (self.use_k_shift + self.use_v_shift))
