"""Tile sizes and launch settings, measured once per GPU and shipped as a table: no search at run time."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .launch import Descriptor


@dataclass(frozen=True)
class Tiles:
    """Queries (block_m) and keys (block_n) of one step, and how Triton schedules the kernel."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    maxnreg: int | None = None

    def options(self, q: Tensor) -> dict[str, Any]:
        """Return the constexprs and launch options of a kernel that loops over tiles, by name; EXACT: inputs are float32."""
        exact = q.dtype == torch.float32
        return dict(
            BLOCK_M=self.block_m, BLOCK_N=self.block_n, D=q.shape[-1], EXACT=exact, PRECISION="ieee" if exact else "tf32",
            num_warps=self.num_warps, num_stages=self.num_stages, maxnreg=self.maxnreg,
        )  # fmt: skip

    def described(self, q: Tensor, k: Tensor, v: Tensor, *do: Tensor) -> tuple[Descriptor, ...]:
        """Return descriptors of the tiles of queries, keys, values, and the gradient of the output."""
        sizes = (self.block_m, self.block_n, self.block_n, self.block_m)
        return tuple([rows_descriptor(x, n) for x, n in zip((q, k, v, *do), sizes, strict=False)])


@functools.cache
def table(file: str) -> dict[str, dict[str, Tiles]]:
    """Read settings by GPU ("sm_90", "default") or "float32", then by kernel and head dimension ("forward_64")."""
    entries = json.loads(Path(file).read_text())
    return {gpu: {kernel: Tiles(**tiles) for kernel, tiles in kernels.items()} for gpu, kernels in entries.items()}


@functools.cache
def tiles_for(file: str, kernel: str, head_dim: int, dtype: torch.dtype, device: torch.device) -> Tiles:
    """Return a kernel's settings for this GPU: tuned for compute capability 9.0, a conservative default for others."""
    gpu = "float32"
    if dtype != torch.float32:
        major, minor = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
        gpu = f"sm_{major}{minor}" if f"sm_{major}{minor}" in table(file) else "default"
    return table(file)[gpu][f"{kernel}_{head_dim}"]


def rows_descriptor(x_BTHD: Tensor, rows: int, make: Callable[..., Any] = TensorDescriptor) -> Descriptor:
    """Return a descriptor of tiles of `rows` consecutive tokens of one head; tokens past the end read as 0. The tensor is
    copied only if TMA cannot address it (address and strides must be multiples of 16 bytes)."""
    shape, size = x_BTHD.shape, x_BTHD.element_size()
    strides = _free_strides(shape, x_BTHD.stride(), size)
    if strides is None or x_BTHD.data_ptr() % 16:
        x_BTHD = x_BTHD.clone(memory_format=torch.contiguous_format)  # `contiguous` may return an unaligned tensor
        strides = _free_strides(shape, x_BTHD.stride(), size)
    assert strides is not None
    return make, x_BTHD, shape, strides, (1, rows, 1, shape[-1])


@functools.lru_cache(4096)
def _free_strides(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """Return strides for a descriptor, all multiples of 16 bytes, replacing those of dimensions of size one, which may be
    anything. None if another stride is no multiple."""
    if strides[-1] != 1 or any(s <= 0 or s * size % 16 for s, n in zip(strides[:-1], shape, strict=False) if n > 1):
        return None
    return (*(s if n > 1 else shape[-1] for s, n in zip(strides[:-1], shape, strict=False)), 1)
