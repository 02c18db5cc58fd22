"""The small operations around attention, each as one pass over memory on a GPU: key/value shift with the per-head
RMSNorm that follows it, and the output norm with its gate (section 3.3 of the paper's Pro block).

On a CPU, and wherever Triton has no place, they are the plain PyTorch below, which is also what the kernels are tested
against. All arithmetic is in float32; only inputs and outputs have the tensors' dtype.
"""

import torch
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
    """Mix in the previous token, then normalise each head: RMSNorm(a_t x_{t-1} + (1 - a_t) x_t) * weight.

    Args:
        x_BTHD: keys, values or queries, (B, T, H, D).
        alpha_logit_BTH: a = sigmoid of it weighs the previous token; None leaves out the shift.
        weight: (D,) shared by the heads, or (H, D) or (H * D,); None leaves out the norm.
        eps: of the norm.
        before_B1HD: the token before the first (decoding), without gradient; zero if None.

    Returns:
        (B, T, H, D) in x's dtype, contiguous.
    """
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
    y_BTHD = x_BTHD.float()
    if alpha_logit_BTH is not None:
        before_B1HD = torch.zeros_like(y_BTHD[:, :1]) if before_B1HD is None else before_B1HD.detach().float()
        alpha = torch.sigmoid(alpha_logit_BTH.float())[..., None]
        y_BTHD = alpha * torch.cat([before_B1HD, y_BTHD[:, :-1]], 1) + (1.0 - alpha) * y_BTHD
    if weight is not None:
        y_BTHD = rms_norm(y_BTHD, y_BTHD.shape[-1:], eps=eps) * weight.float().view(-1, y_BTHD.shape[-1])
    return y_BTHD.to(x_BTHD.dtype)


def gated_output_norm(o_BTHD: Tensor, gate_BTHD: Tensor | None, weight: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Per-head RMSNorm of attention's output, then the output gate: RMSNorm(o) * weight * sigmoid(gate).

    Args:
        o_BTHD: (B, T, H, D).
        gate_BTHD: logits of the gate, o's shape; None leaves out the gate.
        weight: (D,) shared by the heads, or (H, D) or (H * D,).
        eps: of the norm.

    Returns:
        (B, T, H, D) in o's dtype, contiguous.
    """
    _check(o_BTHD, "o_BTHD", weight)
    if gate_BTHD is not None and gate_BTHD.shape != o_BTHD.shape:
        raise ValueError(f"gate_BTHD has shape {tuple(gate_BTHD.shape)}; it must be o's, {tuple(o_BTHD.shape)}.")
    if _on_gpu(o_BTHD):
        from kernels.fused_norms_triton import triton_gated_norm

        return triton_gated_norm(o_BTHD, gate_BTHD, weight.reshape(-1), eps)
    y_BTHD = rms_norm(o_BTHD.float(), o_BTHD.shape[-1:], eps=eps) * weight.float().view(-1, o_BTHD.shape[-1])
    if gate_BTHD is not None:
        y_BTHD = y_BTHD * torch.sigmoid(gate_BTHD.float())
    return y_BTHD.to(o_BTHD.dtype)


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda and x.dtype != torch.float64 and x.shape[-1] & (x.shape[-1] - 1) == 0


def _check(x_BTHD: Tensor, name: str, weight: Tensor | None) -> None:
    if x_BTHD.dim() != 4:
        raise ValueError(f"{name} has shape {tuple(x_BTHD.shape)}; it must be (B, T, H, D).")
    H, D = x_BTHD.shape[2:]
    if weight is not None and tuple(weight.shape) not in ((D,), (H, D), (H * D,)):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; it must be ({D},), ({H}, {D}) or ({H * D},).")
