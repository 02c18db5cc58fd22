"""Parts that the models share below the head: norms, MLP, pre-norm residual blocks, and the base class of every backbone
(Appendix B).

A mixer (attention or recurrence) is a module with `forward(x, cache, padding)`; a block calls it on the normalised
input with padded positions set to zero. With zero input and no bias, every mixer's keys, values and shifted
neighbours at padded positions are zero, so left padding leaves no trace in a state. Under autocast the residual
stream stays fp32 and mixers and MLPs run in the autocast dtype.

Suffixes: B batch, T tokens, d hidden size."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from kernels.attention_shared.arguments import autocasts
from kernels.swiglu import swiglu
from models.cache import DecodingCache
from models.spec_parts import ModelKind

INITIALIZER_RANGE = 0.02
DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 1e-1, 1e-4


@dataclass(frozen=True)
class Padding:
    """Left padding of a batch: `real` (B, T) is true for current tokens that are not padding, `start` (B,) int32 is the first
    real position of the whole sequence, cached tokens included."""

    real: Tensor
    start: Tensor


class RMSNorm(nn.Module):
    """RMSNorm: x / rms(x) * weight over the last dimension, in fp32 at least, returned in the dtype of the next matmul."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.rms_norm(exact, (x.shape[-1],), self.weight.to(exact.dtype), self.eps).to(product_dtype(x))


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a matmul with x: autocast's if enabled, else x's."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if autocasts(device) else x.dtype


class SwiGLU(nn.Module):
    """MLP down(SiLU(gate) * up) with gate and up as one matrix: the first rows are the gate."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(swiglu(self.gate_proj(x)))


class ResidualBlock(nn.Module):
    """Base of the blocks: runs a residual branch, recomputed in the backward pass if activation checkpointing is on."""

    gradient_checkpointing = False
    _gradient_checkpointing_func: Callable[..., Tensor]

    @property
    def recomputes(self) -> bool:
        return self.gradient_checkpointing and self.training

    def branch(self, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
        if self.recomputes:
            return self._gradient_checkpointing_func(function, *inputs)
        return function(*inputs)


class Block(ResidualBlock):
    """Residual block: x += mixer(norm(x)); x += mlp(norm(x)). Each half is checkpointed separately, as in the paper's runs."""

    def __init__(self, mixer: nn.Module, hidden_size: int, intermediate_size: int, norm_eps: float) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(hidden_size, norm_eps)
        self.attn = mixer
        self.mlp_norm = RMSNorm(hidden_size, norm_eps)
        self.mlp = SwiGLU(hidden_size, intermediate_size)

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None, *extra: Tensor) -> Tensor:
        x = x + self.branch(self._mix, x, cache, padding, *extra)
        return x + self.branch(self._feed, x)

    def _mix(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None, *extra: Tensor) -> Tensor:
        return self.attn(zero_padded(self.attn_norm(x), padding), cache, padding, *extra)

    def _feed(self, x: Tensor) -> Tensor:
        return self.mlp(self.mlp_norm(x))


def zero_padded(x_BTd: Tensor, padding: Padding | None) -> Tensor:
    """Return x with zeros at padded positions, whatever their values (an attention row without keys may hold anything)."""
    return x_BTd if padding is None else x_BTd.masked_fill(~padding.real[..., None], 0.0)


class Backbone(nn.Module):
    """Embedding, blocks and final norm. Each kind of model is a subclass called `Model`: it builds the blocks, initialises them
    (`init_module`), and may pass them extra inputs: the same for all (`shared_inputs`), or per layer (`extra_inputs`)."""

    def __init__(self, spec: ModelKind, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.spec: Any = spec
        self.embeddings = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(blocks)
        self.norm = RMSNorm(spec.hidden_size, spec.norm_eps)

    def init_module(self, module: nn.Module) -> None:
        """Initialise the parameters of one module of the model, which may be the head. Called for every module that has
        parameters of its own, after its children."""
        raise NotImplementedError

    @contextmanager
    def measuring(self) -> Iterator[dict[str, list[Tensor]]]:
        """Yield lists by each name of `spec.measured`, to which passes over whole sequences append a () tensor per layer."""
        yield {}

    def shared_inputs(self, x_BTd: Tensor, cache: DecodingCache | None, padding: Padding | None) -> tuple[Tensor, ...]:
        return ()

    def extra_inputs(self, layer_idx: int) -> tuple[Tensor, ...]:
        return ()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: DecodingCache | None = None,
        use_cache: bool = False,
    ) -> BaseModelOutputWithPast:
        """Return hidden states (B, T, d) after the final norm. `attention_mask` (B, cached + T) marks left padding with 0:
        zeros after a token count as text, and with a cache no row may end in padding. Without a mask, padding that the cache
        knows applies. A given cache is continued by T >= 1 tokens, without gradients; `use_cache` starts one, unless
        activations are recomputed."""
        cached = 0 if past_key_values is None else past_key_values.get_seq_length()
        _check_shapes(input_ids, attention_mask, cached)
        x = self.embeddings(input_ids)
        recomputed = torch.is_grad_enabled() and any(isinstance(m, ResidualBlock) and m.recomputes for m in self.layers)
        if recomputed and past_key_values is not None:
            given = f"past_key_values of {cached} tokens with gradient checkpointing"
            remedy = "give none, or call gradient_checkpointing_disable() or eval()"
            raise ValueError(f"{given}: recomputed layers would read a cache that has advanced; {remedy}")
        if cached and torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            remedy = "call it under torch.no_grad(), or give the whole text without a cache"
            raise ValueError(f"past_key_values of {cached} tokens with gradients, which a cache does not propagate: {remedy}")
        cache = past_key_values if past_key_values is not None or recomputed or not use_cache else DecodingCache()
        rows, new = input_ids.shape
        if cache is not None and cache.room is not None and not self.spec.has_places:
            rule = "steps of this model cannot be replayed, as not all its states stay at fixed addresses"
            raise ValueError(f"room={cache.room}: {rule}; give a cache without room")
        if cache is not None:
            cache.begin(rows, new, x.device, product_dtype(x))
        if cache is not None and (attention_mask is None or (cache.begun and cache.one_by_one(new))):
            start, cache.begun = cache.seq_start, True
            padding = None if start is None else Padding(torch.ones_like(input_ids, dtype=torch.bool), start)
        else:
            # Not on a GPU, where reading the mask would synchronise.
            looks = cache is not None and not torch.compiler.is_compiling()
            if looks and attention_mask is not None and attention_mask.device.type == "cpu":
                refuse_padding_after_tokens(attention_mask)
            padding = _padding(attention_mask, cached)
            if cache is not None and padding is not None:
                cache.begin_at(padding.start)
                cache.begun = cache.room is None or bool((padding.start < cached + new).all())
        shared = self.shared_inputs(x, cache, padding)
        for i, layer in enumerate(self.layers):
            x = layer(x, cache, padding, *shared, *self.extra_inputs(i))
        if cache is not None:
            cache.end(new)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=cache)  # type: ignore[arg-type]


def _check_shapes(input_ids: Tensor, attention_mask: Tensor | None, cached: int) -> None:
    if input_ids.ndim != 2 or 0 in input_ids.shape:
        given = f"input_ids of shape {tuple(input_ids.shape)} after {cached} cached tokens"
        raise ValueError(f"{given}: it must be (batch, tokens), one of each at least")
    rows, new = input_ids.shape
    if attention_mask is not None and attention_mask.shape != (rows, cached + new):
        given = f"attention_mask of shape {tuple(attention_mask.shape)} with {cached} cached and {new} new tokens"
        raise ValueError(f"{given} in {rows} rows: it must be {(rows, cached + new)}")


def refuse_padding_after_tokens(mask_BT: Tensor) -> None:
    """Raise ValueError if a row ends in padding. Zeros between tokens may be text: without a mask `generate` makes one with
    zeros at every pad token."""
    rows = (mask_BT[:, -1].eq(0) & mask_BT.ne(0).any(1)).nonzero()
    if len(rows):
        rule = "padding must be on the left: tokenise with padding_side='left', or give ones if that token is text"
        raise ValueError(f"attention_mask is 0 at the last token of row {int(rows[0])}, after ones: {rule}")


def _padding(attention_mask: Tensor | None, cached: int) -> Padding | None:
    if attention_mask is None:
        return None
    seen_BT = attention_mask.ne(0).cumsum(1).gt(0)
    return Padding(real=seen_BT[:, cached:], start=(~seen_BT).sum(1, dtype=torch.int32))


def is_plain(module: nn.Module) -> bool:
    """Tell whether calling the module is nothing but a matmul with its weight: no adapter, no hook."""
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    return type(module) is nn.Linear and not any(hooks)


def linear_normal_(module: nn.Module, std: float) -> None:
    """Draw N(0, std^2) weights and zero biases for linear maps and embeddings; ones for norm weights."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=std)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    elif isinstance(module, RMSNorm):
        nn.init.ones_(module.weight)


def start_with(parameter: Tensor, value: Tensor) -> None:
    """Copy a computed initial value into a parameter, unless Hugging Face has loaded it from a checkpoint."""
    if not getattr(parameter, "_is_hf_initialized", False):
        parameter.copy_(value)


def step_size_bias(size: int) -> Tensor:
    """Return biases (size,) whose softplus, the step sizes of a state-space model, are log-uniform in [1e-3, 1e-1]."""
    dt = torch.exp(torch.empty(size).uniform_(math.log(DT_MIN), math.log(DT_MAX))).clamp(min=DT_FLOOR)
    return dt + torch.log(-torch.expm1(-dt))  # the inverse of softplus


def mark_ends(output: nn.Module, block: Block) -> None:
    """Mark the linear maps that end a block's branches for `init_as_pytorch_`, which gets modules one at a time."""
    for linear in (output, block.mlp.down_proj):
        linear.ends_branch = True  # type: ignore[assignment]


def init_as_pytorch_(module: nn.Module, num_layers: int = 0) -> None:
    """Initialise embeddings with N(0, 0.02^2), our norms with ones, everything else by PyTorch's or fla's defaults: linear maps
    Kaiming-uniform(a = sqrt 5), divided by sqrt(2 * num_layers) if they are marked as ends of branches."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=INITIALIZER_RANGE)
    elif isinstance(module, RMSNorm):
        nn.init.ones_(module.weight)
    elif getattr(module, "ends_branch", False):
        bound = 1.0 / math.sqrt(module.in_features * 2 * num_layers)  # type: ignore[operator]
        nn.init.uniform_(module.weight, -bound, bound)  # type: ignore[arg-type]
    elif callable(reset := getattr(module, "reset_parameters", None)):
        reset()
