"""FoX, Transformer and stick-breaking attention, Pro and LLaMA, as one attention block with every switch of the paper
(Fig. 1, sections 3 and 4).

Order of operations in a block: project; shift k and v; normalise q and k; rotate; attend; normalise the output per
head; gate it; project. Parameter names and config keys are those of the published checkpoints.

Suffixes: B batch, T tokens, H heads, D head dimension, d hidden size."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.forgetting_attention import (
    TILE,
    forgetting_attention,
    forgetting_attention_cached,
    gates_of_sums,
    norm_logit_bound,
    pruning_threshold,
    qk_norm_logit_bound,
    share_of_tiles,
    skipped_tiles,
    sum_log_gates,
)
from kernels.fused_norms import gated_output_norm, shift_and_norm
from kernels.stick_breaking import stick_breaking_attention
from models.backbone import Backbone, Block, Padding, RMSNorm, is_plain, linear_normal_, start_with
from models.cache import DecodingCache
from models.forgetting_transformer.spec import ForgettingTransformerSpec

QK_NORM_EPS = 1e-5
TILES = 16


def decay_time_bias(num_heads: int, shortest: float, longest: float) -> Tensor:
    """Return b_h (H,) with sigmoid(b_h) = exp(-1/T_h), decay times T_h (tokens) log-spaced from `shortest` to `longest`
    (Fig. 7): (2, 256) over 8 heads gives ALiBi's slopes 2^-1 .. 2^-8."""
    times = torch.logspace(math.log2(shortest), math.log2(longest), num_heads, base=2.0, dtype=torch.float64)
    return (-torch.log(torch.expm1(1.0 / times))).float()


def token_positions(x_BTd: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
    """Return positions (B or 1, T); the first real token is 0."""
    cached = 0 if cache is None else cache.seq_len if cache.position is None else cache.position
    positions = torch.arange(x_BTd.shape[1], device=x_BTd.device)[None] + cached
    return positions if padding is None else (positions - padding.start[:, None]).clamp(min=0)


def rotation_table(positions: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin (B or 1, T, 1, D/2) of the rotary angles of positions (B or 1, T), in fp32."""
    half = head_dim // 2
    frequencies = base ** (-torch.arange(half, device=positions.device, dtype=torch.float32) / half)
    angles = positions.float()[..., None, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding over the whole head dimension, channels i and i + D/2 paired."""
    half = x_BTHD.shape[-1] // 2
    first, second = x_BTHD.float().split(half, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x_BTHD.dtype)


class HeadNorm(RMSNorm):
    """RMSNorm over each head's channels; the scale is (D,), shared by the heads, or (H * D,), one per head."""

    def forward(self, x_BTHD: Tensor) -> Tensor:
        return shift_and_norm(x_BTHD, None, self.weight, eps=self.eps)


class ShiftLinear(nn.Module):
    """Weights of a projection whose heads mix in that of the previous token by a data-dependent scalar, computed in `_project`
    of attention: alpha_t * x_{t-1} + (1 - alpha_t) * x_t (section 3.3, no bias)."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size, bias=False)
        self.shift_proj = nn.Linear(hidden_size, num_heads, bias=False)


class ForgettingAttention(nn.Module):
    """Multi-head causal attention with the switches of `ForgettingTransformerSpec`."""

    fgate_bias: Tensor

    def __init__(self, spec: ForgettingTransformerSpec, layer_idx: int) -> None:
        super().__init__()
        self.spec, self.layer_idx = spec, layer_idx
        d, heads = spec.hidden_size, spec.num_heads
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = ShiftLinear(d, heads) if spec.use_k_shift else nn.Linear(d, d, bias=False)
        self.v_proj = ShiftLinear(d, heads) if spec.use_v_shift else nn.Linear(d, d, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)
        if spec.forget_gate == "full":
            self.fgate_proj = nn.Linear(d, heads, bias=True)
        elif spec.forget_gate == "bias_only":
            self.fgate_bias = nn.Parameter(torch.empty(heads))
        elif spec.forget_gate == "fixed":
            self.register_buffer("fgate_bias", torch.empty(heads, dtype=torch.float32))
        if spec.qk_norm:
            size = spec.head_dim if spec.qk_norm_share_param_across_head else d
            self.q_norm, self.k_norm = HeadNorm(size, QK_NORM_EPS), HeadNorm(size, QK_NORM_EPS)
        if spec.use_output_gate:
            self.ogate_proj = nn.Linear(d, d, bias=False)
        if spec.use_output_norm:
            self.output_norm = HeadNorm(d, spec.norm_eps)

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None, *rotation: Tensor) -> Tensor:
        """Return (B, T, d) from the normalised block input; with a cache, x holds the tokens after the cached ones. `rotation`:
        cos and sin of their positions, if the variant has RoPE."""
        q, k, v, log_fgate = self.project(x, cache, *rotation)
        seq_start = None if padding is None else padding.start
        if cache is None:
            o = self.attend(q, k, v, log_fgate, seq_start)
        else:
            o = self._attend_cached(q, k, v, log_fgate, seq_start, cache)
        gate = self.ogate_proj(x).view_as(o) if self.spec.use_output_gate else None
        silu = self.spec.output_gate_activation == "silu"
        if self.spec.use_output_norm:
            o = gated_output_norm(o, gate, self.output_norm.weight, silu=silu, eps=self.output_norm.eps)
        elif gate is not None:
            o = o * (F.silu if silu else torch.sigmoid)(gate)
        return self.o_proj(o.flatten(-2))

    def project(
        self, x: Tensor, cache: DecodingCache | None = None, *rotation: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the inputs of attention for the tokens in x: q, k, v (B, T, H, D), shifted, normalised and rotated, and the
        log forget gate (B, T, H) in fp32, None without a gate."""
        scalars, normed = self._scalars(x), self.spec.qk_norm
        q = self.q_proj(x).unflatten(-1, (self.spec.num_heads, -1))
        k = self._project("k", x, scalars, cache, self.k_norm if normed else None)
        v = self._project("v", x, scalars, cache, None)
        q = self.q_norm(q) if normed else q
        if self.spec.use_rope:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        return q, k, v, self._log_fgate(x, scalars)

    def _scalars(self, x: Tensor) -> dict[str, Tensor]:
        """Return the scalars (B, T, H) of the tokens in x for each head: the logits of the forget gate and of the shifts of k
        and v. One matmul with their concatenated weights, as each alone is too narrow for a GPU, unless one has an adapter or
        a hook."""
        linears = {"fgate": self.fgate_proj} if hasattr(self, "fgate_proj") else {}
        for name, projection in (("k", self.k_proj), ("v", self.v_proj)):
            if isinstance(projection, ShiftLinear):
                linears[name] = projection.shift_proj
        if not linears:
            return {}
        if not all(map(is_plain, linears.values())):
            return {name: linear(x) for name, linear in linears.items()}
        logits = F.linear(x, torch.cat([linear.weight for linear in linears.values()]))
        scalars = dict(zip(linears, logits.split([len(linear.weight) for linear in linears.values()], -1), strict=True))
        if "fgate" in scalars:
            scalars["fgate"] = scalars["fgate"].float() + self.fgate_proj.bias.float()
        return scalars

    def _project(
        self, name: str, x: Tensor, scalars: dict[str, Tensor], cache: DecodingCache | None, norm: HeadNorm | None
    ) -> Tensor:
        projection = self.k_proj if name == "k" else self.v_proj
        if not isinstance(projection, ShiftLinear):
            projected = projection(x).unflatten(-1, (self.spec.num_heads, -1))
            return projected if norm is None else norm(projected)
        key = f"{name}_before_shift"
        before = cache[self.layer_idx][key] if cache is not None and cache.seq_len else None
        projected = projection.linear(x).unflatten(-1, (self.spec.num_heads, -1))
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        shifted = shift_and_norm(projected, scalars[name], weight, eps=eps, before_B1HD=before)
        if cache is not None:
            cache.update(self.layer_idx, **{key: projected[:, -1:].clone()})  # not a view, which would keep all tokens
        return shifted

    def _log_fgate(self, x: Tensor, scalars: dict[str, Tensor]) -> Tensor | None:
        if self.spec.forget_gate == "none":
            return None
        logits = scalars["fgate"] if hasattr(self, "fgate_proj") else self.fgate_bias
        return F.logsigmoid(logits.float()).expand(*x.shape[:2], self.spec.num_heads)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor | None, seq_start: Tensor | None) -> Tensor:
        """Return the output of attention for the last T queries (B, T, H, D); arguments as `project` returns them."""
        if self.spec.attention == "stick_breaking":
            o, remainder = stick_breaking_attention(q, k, v, seq_start=seq_start)
            return o + (remainder[..., None] * v[:, -q.shape[1] :]).to(o.dtype) if self.spec.stick_remainder else o
        if log_fgate is None:
            whole = seq_start is None and self.spec.window_size is None
            repeats = q.is_cuda and torch.is_grad_enabled() and torch.are_deterministic_algorithms_enabled()
            if whole and not repeats:
                return _softmax_attention(q, k, v)
            # The kernel with gates of 1: padding and windows without a (T, T) mask, deterministic gradients at full speed.
            log_fgate = k.new_zeros(k.shape[:3], dtype=torch.float32)
        pruning = self.pruning(q, k, self.spec.prune_log_tolerance)
        return forgetting_attention(q, k, v, log_fgate, seq_start=seq_start, window_size=self.spec.window_size, **pruning)

    def _attend_cached(
        self, q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor | None, seq_start: Tensor | None, cache: DecodingCache
    ) -> Tensor:
        """Attend over the cached tokens and the new ones, and add these to the cache, their gates as running sums; with room
        they have gates of 1 at least."""
        new, window, bound, length = q.shape[1], self.spec.window_size, None, None
        gate_sum: Any = None
        if log_fgate is not None or cache.room is not None:
            bound = None if log_fgate is None else self._running_bound(q, k, cache)
            gates = k.new_zeros(k.shape[:3], dtype=torch.float32) if log_fgate is None else log_fgate
            gate_sum = sum_log_gates(gates, cache.newest(self.layer_idx, "gate_sum"))
            (gate_sum,) = cache.append(self.layer_idx, window, gate_sum=gate_sum)
        k, v = cache.append(self.layer_idx, window, k=k, v=v)
        if cache.one_by_one(new):
            length = cache.length
        elif seq_start is not None:  # counted from the first key that the cache still has
            seq_start = (seq_start - (cache.seq_len + new - k.shape[1])).clamp(min=0)
        if length is not None or (new == 1 < k.shape[1] and log_fgate is not None):
            return self.attend_newest(q, k, v, gate_sum, seq_start, bound, length)
        if log_fgate is not None and k.shape[1] > new:
            log_fgate = gates_of_sums(gate_sum)
        return self.attend(q, k, v, log_fgate, seq_start)

    def _running_bound(self, q: Tensor, k: Tensor, cache: DecodingCache) -> Tensor | None:
        """Return a bound (B, H) on the newest query's logits from QK-norm's scales, or else from the largest norm of the keys
        so far, which the cache keeps. None without pruning."""
        if self.spec.prune_log_tolerance is None:
            return None
        kept = cache.layers.get(self.layer_idx, {})
        if self.spec.qk_norm:
            if "logit_bound" not in kept:
                bound = self._qk_norm_bound(q.dtype).expand(q.shape[0], q.shape[2]).contiguous()
                kept = cache.update(self.layer_idx, logit_bound=bound)
            return kept["logit_bound"]
        largest = torch.linalg.vector_norm(k, dim=-1, dtype=torch.promote_types(k.dtype, torch.float32)).amax(1)
        if "largest_key" in kept:
            largest = torch.maximum(largest, kept["largest_key"])
        cache.update(self.layer_idx, largest_key=largest)
        return torch.linalg.vector_norm(q[:, -1], dim=-1, dtype=largest.dtype) * largest * self.spec.head_dim**-0.5

    def attend_newest(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate_sum: Tensor,
        seq_start: Tensor | None,
        logit_bound: Tensor | None,
        length: Tensor | None = None,
    ) -> Tensor:
        """Return the output of attention for the newest token (B, 1, H, D) over the cache, with the gates' running sums
        (B, T, H). Prunes with a bound on its logits (B, H). `length` (1,): number of the T entries that hold tokens."""
        threshold = None
        if logit_bound is not None and self.spec.prune_log_tolerance is not None:
            threshold = pruning_threshold(logit_bound, k.shape[1], self.spec.prune_log_tolerance)
        limits: dict[str, Any] = dict(seq_start=seq_start, window_size=self.spec.window_size, length=length)
        return forgetting_attention_cached(q, k, v, gate_sum, adaptive_threshold=threshold, **limits)

    def pruning(self, q: Tensor, k: Tensor, log_tolerance: float | None) -> dict[str, Any]:
        """Return the pruning options of `forgetting_attention`, by the rule of the spec; None disables pruning."""
        if log_tolerance is not None and self.spec.prune_tightly:
            return {"adaptive_threshold": "tight", "log_tolerance": log_tolerance}
        return {"adaptive_threshold": self.threshold(q, k, log_tolerance)}

    def pruned_tiles(self, q: Tensor, k: Tensor, log_fgate: Tensor, log_tolerance: float, tile: int) -> Tensor:
        """Count the leading key tiles that each query tile skips, int32 (B, H, M), by the spec's rule (one query: by ACP's)."""
        if q.shape[1] == 1:
            return skipped_tiles(q, k, log_fgate, tile=tile, adaptive_threshold=self.threshold(q, k, log_tolerance))
        return skipped_tiles(q, k, log_fgate, tile=tile, **self.pruning(q, k, log_tolerance))

    def threshold(self, q: Tensor, k: Tensor, log_tolerance: float | None) -> Tensor | float | None:
        """Return the threshold on D (arXiv 2504.06949), from QK-norm's scales, or else from the norms; None: no pruning."""
        if log_tolerance is None:
            return None
        bound = self._qk_norm_bound(q.dtype) if self.spec.qk_norm else norm_logit_bound(q, k, self.spec.head_dim**-0.5)
        return pruning_threshold(bound, k.shape[1], log_tolerance)

    def _qk_norm_bound(self, dtype: torch.dtype) -> Tensor:
        head_dim = self.spec.head_dim
        q_scale, k_scale = self.q_norm.weight.view(-1, head_dim), self.k_norm.weight.view(-1, head_dim)
        return qk_norm_logit_bound(q_scale, k_scale, head_dim, dtype, roundings=2 if self.spec.use_rope else 1)

    def _apply(self, fn: Any, recurse: bool = True) -> "ForgettingAttention":
        """Keep the fixed gate's bias in fp32 through `.to(bfloat16)`: rounding it would change the decay times."""
        exact = self._buffers.get("fgate_bias")
        super()._apply(fn, recurse)
        if exact is not None:
            moved = self.fgate_bias
            self.fgate_bias = moved.float() if exact.is_meta or moved.is_meta else exact.to(moved.device)
        return self


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention of the last T queries; q (B, T, H, D), k and v (B, S, H, D), S >= T."""
    queries, keys = q.shape[1], k.shape[1]
    partly = 1 < queries < keys
    mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries) if partly else None
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    attend = partial(F.scaled_dot_product_attention, q, k, v, attn_mask=mask, is_causal=bool(queries == keys))
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:  # PyTorch 2.13's kernel fails on AVX-512 CPUs limited to AVX2
        with sdpa_kernel(SDPBackend.MATH):
            return attend().transpose(1, 2)
    return attend().transpose(1, 2)


def gated_layers(model: nn.Module) -> dict[int, ForgettingAttention]:
    """Return the attention layers with forget gates, by layer index. Raises ValueError if there are none."""
    found = [module for module in model.modules() if isinstance(module, ForgettingAttention)]
    gated = {module.layer_idx: module for module in found if module.spec.forget_gate != "none"}
    if not gated:
        raise ValueError(f"{type(model).__name__} has no forget gates: choose a FoX, such as fox_pro")
    return gated


@contextmanager
def watched(layers: Mapping[int, ForgettingAttention], visit: Callable[..., None]) -> Iterator[None]:
    """Call visit(layer, q, k, v, log gate (B, T, H)) whenever one of these layers runs on a whole sequence."""

    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(module, ForgettingAttention)
        visit(module, *module.project(arguments[0], None, *arguments[3:]))

    with ExitStack() as stack:
        for layer in layers.values():
            stack.enter_context(layer.register_forward_pre_hook(hook))
        yield


@contextmanager
def pruning(
    layers: Iterable[ForgettingAttention], log_tolerance: float | None, rule: Literal["acp", "tight"] | None = None
) -> Iterator[None]:
    """Make the layers prune with this tolerance (None: not at all), whatever they were trained with. `rule` defaults to that of
    their spec."""
    own = [(layer, layer.spec) for layer in layers]
    try:
        for layer, spec in own:
            tightly = spec.prune_tightly if rule is None else rule == "tight"
            tightly = tightly and log_tolerance is not None
            layer.spec = replace(spec, prune_log_tolerance=log_tolerance, prune_tightly=tightly)
        yield
    finally:
        for layer, spec in own:
            layer.spec = spec


class Model(Backbone):
    """Backbone that computes the rotary angles once for all layers."""

    def __init__(self, spec: ForgettingTransformerSpec) -> None:
        sizes = (spec.hidden_size, spec.intermediate_size, spec.norm_eps)
        super().__init__(spec, [Block(ForgettingAttention(spec, i), *sizes) for i in range(spec.num_layers)])

    def shared_inputs(self, x_BTd: Tensor, cache: DecodingCache | None, padding: Padding | None) -> tuple[Tensor, ...]:
        positions = token_positions(x_BTd, cache, padding)
        return rotation_table(positions, self.spec.head_dim, self.spec.rope_base) if self.spec.use_rope else ()

    @contextmanager
    def measuring(self) -> Iterator[dict[str, list[Tensor]]]:
        """Yield the share of the causal tiles that pruning skips, per layer the mean over sequences and heads. A sequence has
        at least TILES tiles, in short training contexts smaller ones than the kernels' 128."""
        found: dict[str, list[Tensor]] = {name: [] for name in self.spec.measured}

        def visit(layer: ForgettingAttention, q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor) -> None:
            assert self.spec.prune_log_tolerance is not None
            tile = max(1, min(TILE, q.shape[1] // TILES))
            count_BHM = layer.pruned_tiles(q, k, log_fgate, self.spec.prune_log_tolerance, tile)
            found["pruned_share"].append(share_of_tiles(count_BHM, q.shape[1], k.shape[1], tile).mean())

        with watched(gated_layers(self) if found else {}, visit):
            yield found

    def init_module(self, module: nn.Module) -> None:
        """Initialise with N(0, 0.02^2) everywhere, no scaling with depth, and biases 0 (the forget gate's, too: f starts near
        0.5), except those of gates with decay times."""
        linear_normal_(module, self.spec.initializer_range)
        spec, bias = self.spec, getattr(module, "fgate_bias", None)
        if isinstance(module, nn.Linear):
            bias = module.bias  # a gate's: no other map has one
        if bias is not None and spec.decay_time_min is not None and spec.decay_time_max is not None:
            start_with(bias, decay_time_bias(spec.num_heads, spec.decay_time_min, spec.decay_time_max))
