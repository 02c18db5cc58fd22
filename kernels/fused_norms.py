"""The small operations around attention, each one pass over memory on a GPU: key/value shift with the per-head RMSNorm that
follows it, and the output norm with its gate (section 3.3 of the paper's Pro block).

On a CPU, in float64 and for head dimensions that are no power of two they run the plain PyTorch below, against which the
kernels are tested.
All arithmetic is in float32, or in float64 if the tensors are; only inputs and outputs have the tensors' dtype."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import rms_norm


def shift_and_norm(
    x_BTHD: Tensor,
    alpha_logit_BTH: Tensor | None,
    weight: Tensor | None,
    *,
    eps: float = 1e-5,
    before_B1HD: Tensor | None = None,
) -> Tensor:
    """Mix in the previous token, then normalise each head: RMSNorm(a_t x_{t-1} + (1 - a_t) x_t) * weight with a =
    sigmoid(alpha_logit), in x's dtype, contiguous.

    alpha_logit None disables the shift, weight None the norm; weight is (D,), shared by the heads, (H, D) or (H * D,).
    `before` is the token before the first one (in decoding), which gets no gradient; None means zeros."""
    _check(x_BTHD, "x_BTHD", weight)
    if alpha_logit_BTH is not None and alpha_logit_BTH.shape != x_BTHD.shape[:3]:
        raise ValueError(f"alpha_logit_BTH has shape {tuple(alpha_logit_BTH.shape)}; must be {tuple(x_BTHD.shape[:3])}.")
    if alpha_logit_BTH is None and weight is None:
        raise ValueError("alpha_logit_BTH and weight are both None; there is nothing to do.")
    if _on_gpu(x_BTHD):
        from kernels.fused_norms_triton import triton_shift_and_norm

        weight = None if weight is None else weight.reshape(-1)
        before = None if before_B1HD is None else before_B1HD.detach()
        return triton_shift_and_norm(x_BTHD, alpha_logit_BTH, weight, before, eps)
    y_BTHD = _exact(x_BTHD)
    dtype = y_BTHD.dtype
    if alpha_logit_BTH is not None:
        before_B1HD = torch.zeros_like(y_BTHD[:, :1]) if before_B1HD is None else before_B1HD.detach().to(dtype)
        alpha = torch.sigmoid(alpha_logit_BTH.to(dtype))[..., None]
        y_BTHD = alpha * torch.cat([before_B1HD, y_BTHD[:, :-1]], 1) + (1.0 - alpha) * y_BTHD
    if weight is not None:
        y_BTHD = rms_norm(y_BTHD, y_BTHD.shape[-1:], eps=eps) * weight.to(dtype).view(-1, y_BTHD.shape[-1])
    return y_BTHD.to(x_BTHD.dtype)


def gated_output_norm(
    o_BTHD: Tensor, gate_BTHD: Tensor | None, weight: Tensor, *, silu: bool = False, eps: float = 1e-6
) -> Tensor:
    """Apply a per-head RMSNorm to attention's output, then the output gate: RMSNorm(o) * weight * sigmoid(gate), in o's dtype,
    contiguous. gate None disables the gate; `silu` takes SiLU(gate) instead; weight is (D,), shared by the heads, (H, D) or
    (H * D,)."""
    _check(o_BTHD, "o_BTHD", weight)
    if gate_BTHD is not None and gate_BTHD.shape != o_BTHD.shape:
        raise ValueError(f"gate_BTHD has shape {tuple(gate_BTHD.shape)}; it must be o's, {tuple(o_BTHD.shape)}.")
    if _on_gpu(o_BTHD):
        from kernels.fused_norms_triton import triton_gated_norm

        return triton_gated_norm(o_BTHD, gate_BTHD, weight.reshape(-1), eps, silu)
    y_BTHD = rms_norm(_exact(o_BTHD), o_BTHD.shape[-1:], eps=eps)
    y_BTHD = y_BTHD * weight.to(y_BTHD.dtype).view(-1, o_BTHD.shape[-1])
    if gate_BTHD is not None:
        y_BTHD = y_BTHD * (F.silu if silu else torch.sigmoid)(gate_BTHD.to(y_BTHD.dtype))
    return y_BTHD.to(o_BTHD.dtype)


def norm_of_gated(y_BTd: Tensor, z_BTd: Tensor, weight_d: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Apply Mamba-2's output norm over all channels, after its gate: RMSNorm(y * SiLU(z)) * weight (arXiv 2405.21060, section
    7.1), in y's dtype, contiguous."""
    d = y_BTd.shape[-1]
    if y_BTd.dim() != 3 or z_BTd.shape != y_BTd.shape or weight_d.shape != (d,):
        y, z, weight = (tuple(x.shape) for x in (y_BTd, z_BTd, weight_d))
        raise ValueError(f"y {y}, z {z}, weight {weight}: they must be (B, T, d) twice, and (d,).")
    if y_BTd.is_cuda and y_BTd.dtype != torch.float64:
        from kernels.fused_norms_triton import triton_norm_of_gated

        return triton_norm_of_gated(y_BTd, z_BTd, weight_d, eps)
    exact = _exact(y_BTd)
    gated = exact * F.silu(z_BTd.to(exact.dtype))
    return (rms_norm(gated, (d,), eps=eps) * weight_d.to(exact.dtype)).to(y_BTd.dtype)


def _exact(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda and x.dtype != torch.float64 and x.shape[-1] & (x.shape[-1] - 1) == 0


def _check(x_BTHD: Tensor, name: str, weight: Tensor | None) -> None:
    if x_BTHD.dim() != 4:
        raise ValueError(f"{name} has shape {tuple(x_BTHD.shape)}; it must be (B, T, H, D).")
    H, D = x_BTHD.shape[2:]
    if weight is not None and tuple(weight.shape) not in ((D,), (H, D), (H * D,)):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; it must be ({D},), ({H}, {D}) or ({H * D},).")
