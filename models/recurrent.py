"""Layers of flash-linear-attention in our backbone. Importing this installs fla's CPU versions: do it before the layer."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kernels.fla_cpu.install import install
from models.backbone import (
    INITIALIZER_RANGE,
    Backbone,
    Block,
    Padding,
    is_plain,
    linear_normal_,
    start_with,
    step_size_bias,
    zero_padded,
)
from models.cache import DecodingCache
from models.spec_parts import WithMLP

install()

MIXER_GAIN = 2**-2.5


class FlaBlock(Block):
    """Block around a layer of fla, which has its own signature and cache. Padded inputs are zero: keys, values and convolutions
    without a bias stay zero, and gates do not change a state of zeros. So no mask is needed."""

    def _mix(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None, *lower_bound: Tensor) -> Tensor:
        more = {"lower_bound": lower_bound[0]} if lower_bound else {}  # HGRN2's
        return self.attn(zero_padded(self.attn_norm(x), padding), past_key_values=cache, use_cache=cache is not None, **more)[0]


class FusedOutput(nn.Module):
    """Base, listed before fla's class, of a layer whose output projection fla fuses with the norm before it, using only the
    projection's weight (`rms_norm_linear`)."""

    layer_idx: int
    o_proj: nn.Module

    def forward(self, *given: Any, **options: Any) -> Any:
        """Run fla's layer. Raises ValueError if the output projection is more than its weight."""
        if not is_plain(self.o_proj):
            met = f"o_proj of layer {self.layer_idx}, a {type(self.o_proj).__name__}, has an adapter or a hook"
            raise ValueError(f"{met}: fla uses only its weight; merge the adapter, or leave out o_proj")
        return super().forward(*given, **options)


class RecurrentModel(Backbone):
    """Backbone of blocks around layers of one class of fla, each made with `options` and the sizes of the spec, except where
    `others` has a block of another kind. The linear maps of fla's layers, and the output maps of their MLPs, get an attribute
    `place`, as Hugging Face calls `init_module` for each module without context."""

    decay_rates: tuple[float, float] | None = None
    """Bounds of the uniform initial decay rates of a gated mixer; its step sizes start log-uniform in [1e-3, 1e-1]."""

    def __init__(
        self, spec: WithMLP, layer: Callable[..., nn.Module], others: Mapping[int, nn.Module] | None = None, **options: Any
    ) -> None:
        others, blocks = others or {}, list[nn.Module]()
        for layer_idx in range(spec.num_layers):
            if layer_idx in others:
                blocks.append(others[layer_idx])
                continue
            mixer = layer(hidden_size=spec.hidden_size, norm_eps=spec.norm_eps, layer_idx=layer_idx, **options)
            block = FlaBlock(mixer, spec.hidden_size, spec.intermediate_size, spec.norm_eps)
            for module in block.attn.modules():
                if isinstance(module, nn.Linear):
                    module.place = "mixer"  # type: ignore[assignment]
            block.mlp.down_proj.place = "mlp_output"  # type: ignore[assignment]
            blocks.append(block)
        super().__init__(spec, blocks)

    def init_module(self, module: nn.Module) -> None:
        """Initialise as the released HGRN2 and DeltaNet: mixer projections Xavier-uniform with gain 2^-2.5, MLP outputs scaled
        by depth, embedding and other linear maps N(0, 0.02^2), biases 0, norms and convolutions by their defaults. The released
        code intends N(0, 0.02^2) for convolutions, but by then their layer is marked as initialised."""
        place, reset = getattr(module, "place", None), getattr(module, "reset_parameters", None)
        if place == "mlp_output":
            linear_normal_(module, INITIALIZER_RANGE / math.sqrt(2 * len(self.layers)))
        elif callable(reset) and not isinstance(module, (nn.Linear, nn.Embedding)):
            reset()  # fla's norms: ones; its convolutions: PyTorch's default, U(-0.5, 0.5) at width 4
        elif place == "mixer" and isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, gain=MIXER_GAIN)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        else:
            linear_normal_(module, INITIALIZER_RANGE)
        if self.decay_rates is not None and hasattr(module, "A_log"):
            gated: Any = module
            start_with(gated.A_log, torch.empty(gated.num_heads).uniform_(*self.decay_rates).log())
            start_with(gated.dt_bias, step_size_bias(gated.dt_bias.numel()))
