"""Mamba-2 (arXiv 2405.21060): flash-linear-attention's layer with the recurrence through `kernels.ssd`.

The layer's own paths need mamba-ssm and causal-conv1d, or memory for a naive scan. fla's `chunk_simple_gla` computes the
recurrence too, but refuses its gradient on Hopper with Triton 3.4 to 3.7.0, and needs keys and queries repeated per head.
The paper's setup: twice the layers, no MLPs (Appendix B)."""

import logging
import math
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.causal_conv import causal_conv_silu
from kernels.fla_cpu.install import install
from kernels.fused_norms import norm_of_gated
from kernels.ssd import ssd
from models.backbone import Backbone, Padding, ResidualBlock, RMSNorm, init_as_pytorch_, start_with, step_size_bias, zero_padded
from models.cache import DecodingCache
from models.mamba2.spec import Mamba2Spec

install()
# fla warns for every layer that mamba-ssm and causal-conv1d are missing; the forward pass here uses neither.
logging.getLogger("fla.layers.mamba2").setLevel(logging.ERROR)

from fla.layers.mamba2 import Mamba2  # noqa: E402  (fla after the CPU versions are in place)


class Mamba2Mixer(Mamba2):
    """fla's layer (parameters and gated norm) with a forward pass for training, prefill and decoding on any device."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # The forward pass here calls neither, and a function that `install` has replaced cannot be pickled.
        self.causal_conv1d_fn = self.causal_conv1d_update = None

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        """Return (B, T, d): h_t = exp(-A dt_t) h_{t-1} + dt_t B_t x_t; y_t = C_t h_t + D x_t; out = W norm(y * SiLU(z))."""
        past = cache[self.layer_idx] if cache is not None and cache.seq_len else {}
        z, xBC, dt = self.in_proj(x).split([self.intermediate_size, self.conv_dim, self.num_heads], -1)
        xBC, conv_state = causal_conv_silu(
            xBC, self.conv1d.weight.squeeze(1), self.conv1d.bias, past.get("conv_state"), keep_state=cache is not None
        )
        xBC = zero_padded(xBC, padding)  # the convolution's bias made padded positions non-zero
        values, B, C = xBC.split([self.intermediate_size, self.ssm_state_size, self.ssm_state_size], -1)
        values = values.unflatten(-1, (self.num_heads, self.head_dim))
        step = F.softplus(dt.float() + self.dt_bias.float())
        log_decay = -self.A_log.float().exp() * step
        y, state = ssd(C, B, values, step, log_decay, self.D, past.get("recurrent_state"))
        if cache is not None:
            cache.update(self.layer_idx, conv_state=conv_state, recurrent_state=state)
        return self.out_proj(norm_of_gated(y.flatten(-2), z, self.norm.weight, eps=self.norm.eps))


class Mamba2Block(ResidualBlock):
    """Residual block without MLP: x += mixer(norm(x))."""

    def __init__(self, spec: Mamba2Spec, layer_idx: int) -> None:
        super().__init__()
        self.norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        same = {name: getattr(spec, name) for name in ("head_dim", "hidden_size", "expand", "norm_eps")}
        sizes = dict(same, state_size=spec.ssm_state_size, conv_kernel=spec.conv_size)
        self.mixer = Mamba2Mixer(**sizes, layer_idx=layer_idx, backend="triton")

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        return x + self.branch(self._mix, x, cache, padding)

    def _mix(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        return self.mixer(zero_padded(self.norm(x), padding), cache, padding)


class Model(Backbone):
    def __init__(self, spec: Mamba2Spec) -> None:
        super().__init__(spec, [Mamba2Block(spec, i) for i in range(spec.num_layers)])

    def init_module(self, module: nn.Module) -> None:
        """Initialise with PyTorch's defaults for linear maps and convolutions, output projections divided by sqrt(layers); A =
        1..H, D = 1, dt log-uniform in [1e-3, 1e-1]; embedding N(0, 0.02^2)."""
        if not isinstance(module, Mamba2Mixer):
            init_as_pytorch_(module)
            return
        bound = 1.0 / math.sqrt(module.intermediate_size * len(self.layers))  # Kaiming-uniform(a = sqrt 5) / sqrt(layers)
        nn.init.uniform_(module.out_proj.weight, -bound, bound)
        nn.init.ones_(module.D)
        start_with(module.dt_bias, step_size_bias(module.num_heads))
        start_with(module.A_log, torch.arange(1.0, module.num_heads + 1).log())
