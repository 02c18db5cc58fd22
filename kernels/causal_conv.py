"""The short convolution before a state-space recurrence (Mamba-2, arXiv 2405.21060, section 7.1): depth-wise, causal, followed
by SiLU. Whole sequences on a GPU use our own kernels, one pass over memory in each direction; others use fla's operator."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
import torch
from torch import Tensor

from kernels.fla_cpu.install import install

install()

from fla.modules.causal_conv1d import ops  # noqa: E402  (fla after the CPU versions are in place)

WIDTH = 4
"""Number of taps that our kernels support: that of every published Mamba. Other widths use fla's operator."""


def causal_conv_silu(
    x_BTD: Tensor, weight_DW: Tensor, bias_D: Tensor | None, state_BDW: Tensor | None = None, *, keep_state: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return y_t = SiLU(bias + sum over w of weight_w x_{t - W + 1 + w}) for each channel, in x's dtype, contiguous, and with
    `keep_state` the last W inputs as the new state.

    Inputs before the first token come from the given state, or are zero; the last tap is that of the current token."""
    D = x_BTD.shape[-1]
    if x_BTD.dim() != 3 or weight_DW.dim() != 2 or weight_DW.shape[0] != D or (bias_D is not None and bias_D.shape != (D,)):
        x, weight, bias = (None if y is None else tuple(y.shape) for y in (x_BTD, weight_DW, bias_D))
        raise ValueError(f"x {x}, weight {weight}, bias {bias}: they must be (B, T, D), (D, W) and (D,).")
    whole = state_BDW is None and not keep_state
    if whole and weight_DW.shape[1] == WIDTH and x_BTD.is_cuda and x_BTD.dtype != torch.float64:
        from kernels.causal_conv_triton import triton_causal_conv_silu

        return triton_causal_conv_silu(x_BTD, weight_DW, bias_D), None
    return ops.causal_conv1d(
        x=x_BTD, weight=weight_DW, bias=bias_D, initial_state=state_BDW, output_final_state=keep_state, activation="silu"
    )
