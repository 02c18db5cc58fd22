"""Bulk copies (TMA) of tiles of (B, T, H, D) tensors, for the Gluon kernels."""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ...attention_shared.launch import Descriptor
from ...attention_shared.tiles import rows_descriptor as rows_of_a_head

HEADS_AT_ONCE = gl.constexpr(4)
_ELEMENT = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def tile_descriptor(x_BTHD: Tensor, rows: int) -> Descriptor:
    """Return a descriptor of tiles of `rows` consecutive tokens of one head; tokens past the end read as 0."""
    return rows_of_a_head(x_BTHD, rows, _tile)


def _tile(x: Tensor, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    return TensorDescriptor(x, shape, strides, block, gl.NVMMASharedLayout.get_default_for(block, _ELEMENT[x.dtype]))


def rows_descriptor(x: Tensor, rows: int, length: int, columns: int) -> Descriptor:
    """Return a descriptor of tiles of `columns` consecutive numbers of a row of the (rows, length) matrix with which x, float32
    and contiguous, begins."""
    return _row, x, (rows, length), (length, 1), (1, columns)


def _row(x: Tensor, shape: list[int], strides: list[int], block: list[int]) -> TensorDescriptor:
    return TensorDescriptor(x, shape, strides, block, gl.NVMMASharedLayout(0, 32, rank=2))


@gluon.jit
def place(program, tiles, batch_heads, at_once):
    """Map a program to (tile, batch * H + head): `at_once` heads are interleaved, so that the long tiles of all start first.

    With one head after the other, the last head's tiles would start together, and the longest would run on alone."""
    group = program // (tiles * at_once) * at_once
    heads = gl.minimum(batch_heads - group, at_once)
    inside = program - group * tiles
    return inside // heads, group + inside % heads


@gluon.jit
def put(cell, x):
    """Store an integer to shared memory, by one warp."""
    cell.store(gl.full([1], x, gl.int32, gl.BlockedLayout([1], [32], [1], [0])))


@gluon.jit
def get(cell, warps: gl.constexpr):
    """Load an integer that `put` wrote."""
    return gl.max(cell.load(gl.BlockedLayout([1], [32], [warps], [0])), 0)
