"""PyTorch versions of the norms and convolutions of fla that the baselines' layers call, with the same arguments."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(
    x: Tensor, weight: Tensor | None, bias: None = None, residual: None = None, eps: float = 1e-5, **fused: bool
) -> Tensor:
    """RMSNorm over the last dimension, computed in fp32, returned in x's dtype. No layer here uses a fused residual."""
    if bias is not None or residual is not None or any(fused.values()):
        raise NotImplementedError("rms_norm on the CPU takes neither a bias nor a fused residual")
    return F.rms_norm(x.float(), x.shape[-1:], None if weight is None else weight.float(), eps).to(x.dtype)


def rms_norm_linear(
    x: Tensor, norm_weight: Tensor, norm_bias: None, linear_weight: Tensor, linear_bias: Tensor | None, eps: float = 1e-5
) -> Tensor:
    """RMSNorm followed by a linear map (HGRN2's output)."""
    return F.linear(rms_norm(x, norm_weight, norm_bias, eps=eps).to(linear_weight.dtype), linear_weight, linear_bias)


def rms_norm_gated(
    x: Tensor, g: Tensor, weight: Tensor | None, bias: None = None, activation: str = "swish", eps: float = 1e-6, **fused: Any
) -> Tensor:
    """Norm of the gated delta rules: RMSNorm(x) * SiLU(g), or * sigmoid(g)."""
    gate = torch.sigmoid(g.float()) * (1 if activation == "sigmoid" else g.float())
    return (rms_norm(x.float(), weight, bias, eps=eps, **fused) * gate).to(x.dtype)


def rmsnorm_fn(
    x: Tensor, weight: Tensor, bias: None, z: Tensor, eps: float = 1e-6, group_size: int | None = None, **order: bool
) -> Tensor:
    """Mamba-2's gated norm: RMSNorm(x * SiLU(z)), over groups of `group_size` channels."""
    if bias is not None or order.get("norm_before_gate", True):
        raise NotImplementedError("rmsnorm_fn on the CPU gates before the norm and takes no bias")
    gated = (x.float() * F.silu(z.float())).unflatten(-1, (-1, group_size or x.shape[-1]))
    return (F.rms_norm(gated, gated.shape[-1:], eps=eps).flatten(-2) * weight.float()).to(x.dtype)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    activation: str | None = None,
    cu_seqlens: None = None,
    **_: object,
) -> tuple[Tensor, Tensor | None]:
    """Depth-wise causal convolution as W shifted multiply-adds. x (B, T, D), weight (D, W), states (B, D, W): W inputs."""
    if residual is not None or cu_seqlens is not None:
        raise NotImplementedError("causal_conv1d on the CPU takes neither a residual nor packed sequences")
    seq_len, width = x.shape[1], weight.shape[-1]
    past = x.new_zeros(x.shape[0], width, x.shape[2]) if initial_state is None else initial_state.to(x.dtype).mT
    padded = torch.cat([past, x], 1)
    y = padded[:, 1 : 1 + seq_len].float() * weight[:, 0].float()
    for i in range(1, width):
        y = y + padded[:, 1 + i : 1 + i + seq_len].float() * weight[:, i].float()
    if bias is not None:
        y = y + bias.float()
    if activation in ("silu", "swish"):
        y = F.silu(y)
    elif activation is not None:
        raise NotImplementedError(f"activation is {activation!r}; causal_conv1d on the CPU takes 'silu', 'swish' and None")
    return y.to(x.dtype), padded[:, -width:].mT.contiguous() if output_final_state else None


def causal_conv1d_update(x: Tensor, cache: Tensor, residual: None = None, **given: Any) -> tuple[Tensor, Tensor]:
    """Convolution of the next token, x (B, 1, D); `cache` (B, D, W) is updated in place, as in fla."""
    y, state = causal_conv1d(x, residual=residual, initial_state=cache, output_final_state=True, **given)
    assert state is not None
    return y, cache.copy_(state)
