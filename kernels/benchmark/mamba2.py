"""Mamba-2's recurrence and the short convolution before it, ours and flash-linear-attention's.

Shapes are B, T, H, P: batch, tokens, heads, value channels of a head; keys have 128 channels.

fla's recurrence (`chunk_simple_gla`) refuses its gradient on Hopper before Triton 3.7.1."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.benchmark.operators import DTYPE, Attention, Operator, Shape, first
from kernels.causal_conv import WIDTH, causal_conv_silu
from kernels.ssd import FUSED, ssd

STATE = FUSED[0]
SHAPES = ((16, 4096, 16, 64), (2, 16_384, 48, 64))  # of the trained models of 50M and 760M parameters


def recurrent_inputs(shape: Shape, regime: str, device: str = "cuda") -> list[Tensor]:
    """Draw q, k (B, T, N), x (B, T, H, P), step and log_decay (B, T, H) and skip (H,), with gradient, and dO. Step sizes are
    from 0.001 to 0.1 and log decays -1 to -16 times as much, as at a model's initialisation."""
    B, T, H, P = shape
    generator = torch.Generator(device).manual_seed(0)
    q, k = (torch.randn(B, T, STATE, device=device, generator=generator) / STATE**0.5 for _ in range(2))
    x, do = (torch.randn(B, T, H, P, device=device, generator=generator) for _ in range(2))
    step = torch.empty(B, T, H, device=device).uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp()
    log_decay = -step * torch.linspace(1, 16, H, device=device)
    inputs = [*(y.to(DTYPE) for y in (q, k, x)), step, log_decay, torch.ones(H, device=device)]
    return [*(y.requires_grad_() for y in inputs), do.to(DTYPE)]


def convolved_inputs(shape: Shape, regime: str, device: str = "cuda") -> list[Tensor]:
    """Draw x (B, T, D), weight (D, W) and bias (D,), with gradient, and dO; D holds all values, keys and queries."""
    B, T, H, P = shape
    D = H * P + 2 * STATE
    generator = torch.Generator(device).manual_seed(0)
    x, do = (torch.randn(B, T, D, device=device, generator=generator).to(DTYPE) for _ in range(2))
    weight, bias = (torch.randn(D, *more, device=device, generator=generator) / WIDTH for more in ((WIDTH,), ()))
    return [*(y.requires_grad_() for y in (x, weight, bias)), do]


def exact_convolution(x_BTD: Tensor, weight_DW: Tensor, bias_D: Tensor) -> Tensor:
    """Compute the convolution in PyTorch, in any dtype."""
    padded = F.pad(x_BTD.transpose(1, 2), (WIDTH - 1, 0))
    return F.silu(F.conv1d(padded, weight_DW[:, None], bias_D, groups=len(bias_D))).transpose(1, 2)


def _recurrences(shape: Shape) -> dict[str, Attention]:
    import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
    from fla.ops.simple_gla import chunk_simple_gla

    def of_fla(q: Tensor, k: Tensor, x: Tensor, step: Tensor, log_decay: Tensor, skip: Tensor) -> Tensor:
        q, k = (y[:, :, None].expand(-1, -1, x.shape[2], -1) for y in (q, k))
        o, _ = chunk_simple_gla(q, k, (x * step[..., None]).to(x.dtype), log_decay, scale=1.0)
        return (o + x * skip[:, None]).to(x.dtype)

    return {"ours": first(ssd), "fla": of_fla}


def _convolutions(shape: Shape) -> dict[str, Attention]:
    import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
    from fla.modules.causal_conv1d.ops import causal_conv1d

    return {"ours": first(causal_conv_silu), "fla": first(lambda *inputs: causal_conv1d(*inputs, activation="silu"))}


RECURRENCE = Operator(
    kind="mamba2_recurrence",
    shapes=SHAPES,
    regimes=("any",),
    inputs=recurrent_inputs,
    providers=_recurrences,
    exact=lambda provider: first(ssd),
    label=lambda provider, regime: regime,
    work=lambda shape: 0.0,
)
CONVOLUTION = Operator(
    kind="short_convolution",
    shapes=SHAPES,
    regimes=("any",),
    inputs=convolved_inputs,
    providers=_convolutions,
    exact=lambda provider: exact_convolution,
    label=lambda provider, regime: regime,
    work=lambda shape: 0.0,
)
