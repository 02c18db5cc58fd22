"""Mamba-3 (arXiv 2603.15569): flash-linear-attention's layer with our recurrence, as its own needs mamba-ssm.

Suffixes: B batch, T tokens, H heads, N state size, S angles."""

import logging
import math

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.attention_shared.running_sums import running_sums
from kernels.fla_cpu.install import install
from kernels.trapezoidal_ssd import trapezoidal_ssd
from models.backbone import Backbone, Block, Padding, init_as_pytorch_, mark_ends, start_with, step_size_bias
from models.cache import DecodingCache
from models.mamba3.spec import Mamba3Spec

install()
# fla warns for every layer that mamba-ssm is missing; the forward pass here does not use it.
logging.getLogger("fla.layers.mamba3").setLevel(logging.ERROR)

from fla.layers.mamba3 import Mamba3  # noqa: E402  (fla after the CPU versions are in place)


class Mamba3Mixer(Mamba3):
    """fla's layer (parameters and projections) with a forward pass for training, prefill and decoding on any device."""

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        """Return (B, T, d): keys and queries are normalised, get a bias per head and are rotated by angles accumulated over the
        tokens, and out = W (o * SiLU(z)). Padded positions write zeros to the state."""
        past = cache[self.layer_idx] if cache is not None and cache.seq_len else {}
        z, values, k, q, step, decay, share, turn = self._project_and_split(x)
        step = F.softplus(step.float() + self.dt_bias.float())
        turn_BTHS = step[..., None] * math.pi * turn.float().tanh()[:, :, None]
        angle = running_sums(turn_BTHS.flatten(-2), past.get("angle"))
        phase_BTHS = (angle % (2 * math.pi)).float().view_as(turn_BTHS)
        rotation = phase_BTHS.cos(), phase_BTHS.sin()
        q, k = (
            _turned(F.rms_norm(y.float(), y.shape[-1:], norm.weight.float(), norm.eps)[:, :, None] + bias[:, 0], *rotation)
            for y, norm, bias in ((q, self.C_norm, self.C_bias), (k, self.B_norm, self.B_bias))
        )
        values = values.unflatten(-1, (self.num_heads, -1))
        o, state = trapezoidal_ssd(
            q.to(values.dtype), k.to(values.dtype), values, step, share.float().sigmoid(), self._compute_a(decay) * step,
            self.D.float(), past.get("state"),
        )  # fmt: skip
        if cache is not None:
            cache.update(self.layer_idx, angle=angle[:, -1:].clone(), state=state)
        return self.out_proj(o.flatten(-2) * F.silu(z))


def _turned(y_BTHN: Tensor, cos_BTHS: Tensor, sin_BTHS: Tensor) -> Tensor:
    """Rotate the first S pairs of adjacent channels."""
    pairs = 2 * cos_BTHS.shape[-1]
    a, b = y_BTHN[..., 0:pairs:2], y_BTHN[..., 1:pairs:2]
    turned = torch.stack([a * cos_BTHS - b * sin_BTHS, a * sin_BTHS + b * cos_BTHS], -1)
    return torch.cat([turned.flatten(-2), y_BTHN[..., pairs:]], -1)


class Model(Backbone):
    def __init__(self, spec: Mamba3Spec) -> None:
        blocks: list[nn.Module] = []
        for i in range(spec.num_layers):
            same = {name: getattr(spec, name) for name in ("head_dim", "hidden_size", "expand", "norm_eps")}
            mixer = Mamba3Mixer(**same, state_size=spec.ssm_state_size, layer_idx=i)
            block = Block(mixer, spec.hidden_size, spec.intermediate_size, spec.norm_eps)
            mark_ends(mixer.out_proj, block)
            blocks.append(block)
        super().__init__(spec, blocks)

    def init_module(self, module: nn.Module) -> None:
        """Initialise with PyTorch's defaults for linear maps, those that end a branch divided by sqrt(2 * layers); biases of
        keys and queries, and D, with 1; dt log-uniform in [1e-3, 1e-1]; embedding N(0, 0.02^2)."""
        if isinstance(module, Mamba3Mixer):
            for ones in (module.B_bias, module.C_bias, module.D):
                nn.init.ones_(ones)
            start_with(module.dt_bias, step_size_bias(module.num_heads))
        else:
            init_as_pytorch_(module, len(self.layers))
