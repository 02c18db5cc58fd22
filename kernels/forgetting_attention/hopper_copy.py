"""Bulk copies (TMA) of tiles of (B, T, H, D) tensors, for the Gluon kernels."""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.forgetting_attention.tiles import described_strides

HEADS_AT_ONCE = gl.constexpr(4)
_ELEMENT = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def tile_layout(rows: int, head_dim: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """How a tile of `rows` tokens of one head lies in shared memory."""
    return gl.NVMMASharedLayout.get_default_for([1, rows, 1, head_dim], _ELEMENT[dtype])


def tile_descriptor(x_BTHD: Tensor, rows: int) -> TensorDescriptor:
    """Loads `rows` consecutive tokens of one head; tokens past the end read as 0."""
    x_BTHD, strides = described_strides(x_BTHD)
    head_dim = x_BTHD.shape[-1]
    layout = tile_layout(rows, head_dim, x_BTHD.dtype)
    return TensorDescriptor(x_BTHD, list(x_BTHD.shape), strides, [1, rows, 1, head_dim], layout)


def rows_descriptor(x: Tensor, columns: int) -> TensorDescriptor:
    """Loads `columns` consecutive numbers of one row of a contiguous float32 matrix."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, columns], gl.NVMMASharedLayout(0, 32, rank=2))


@gluon.jit
def place(program, tiles, batch_heads):
    """(tile, batch * H + head) of a program: four heads side by side, so that the long tiles of all four come first.

    With one head after the other, the tiles of the last would start together and the longest run on alone.
    """
    group = program // (tiles * HEADS_AT_ONCE) * HEADS_AT_ONCE
    heads = gl.minimum(batch_heads - group, HEADS_AT_ONCE)
    inside = program - group * tiles
    return inside // heads, group + inside % heads
