"""SiLU(gate) * up, the middle of a SwiGLU MLP (arXiv 2002.05202), with gate and up concatenated as one matrix product returns
them.

In training on a GPU forward and backward are one pass over memory each. Elsewhere it is the plain PyTorch below, against which
the kernels are tested; in decoding its two kernels launch sooner than the one of a custom operator."""

import torch
from torch import Tensor
from torch.nn.functional import silu


def swiglu(gate_up: Tensor) -> Tensor:
    """Compute SiLU of the first half of the last dimension times its second half: (..., 2 F) -> (..., F) in the same dtype.

    Raises ValueError if the last dimension is odd or there is none."""
    if gate_up.dim() == 0 or gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up has shape {tuple(gate_up.shape)}; its last dimension must be even: gate, then up.")
    in_training = torch.compiler.is_compiling() or (torch.is_grad_enabled() and gate_up.requires_grad)
    if in_training and gate_up.is_cuda and gate_up.dtype != torch.float64:
        from kernels.swiglu_triton import triton_swiglu

        return triton_swiglu(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return silu(gate) * up
