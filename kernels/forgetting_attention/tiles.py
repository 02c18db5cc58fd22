"""Tile sizes and launch settings, measured once per GPU and shipped as a table: no search at run time."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


@dataclass(frozen=True)
class Tiles:
    """Queries (block_m) and keys (block_n) of one step, and how Triton schedules the kernel."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    maxnreg: int | None = None


@functools.cache
def table() -> dict[str, dict[str, Tiles]]:
    """Settings by GPU ("sm_90", "default") or "float32", then by kernel and head dimension ("forward_64")."""
    entries = json.loads((Path(__file__).parent / "tiles.json").read_text())
    return {gpu: {kernel: Tiles(**tiles) for kernel, tiles in kernels.items()} for gpu, kernels in entries.items()}


@functools.cache
def tiles_for(kernel: str, head_dim: int, dtype: torch.dtype, device: torch.device) -> Tiles:
    """Settings of "forward", "dkdv" or "dq" on this GPU; compute capability 9.0 has measured ones, others a modest
    default."""
    gpu = "float32"
    if dtype != torch.float32:
        major, minor = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
        gpu = f"sm_{major}{minor}" if f"sm_{major}{minor}" in table() else "default"
    return table()[gpu][f"{kernel}_{head_dim}"]


def rows_descriptor(x_BTHD: Tensor, rows: int) -> TensorDescriptor:
    """A bulk-copy descriptor that loads `rows` consecutive tokens of one head; tokens past the end read as 0."""
    x_BTHD, strides = described_strides(x_BTHD)
    return TensorDescriptor(x_BTHD, list(x_BTHD.shape), strides, [1, rows, 1, x_BTHD.shape[-1]])


def described_strides(x_BTHD: Tensor) -> tuple[Tensor, list[int]]:
    """The tensor, copied only if the copy engine cannot address it (16-byte steps), and its strides."""
    steps = [s for s, n in zip(x_BTHD.stride()[:3], x_BTHD.shape[:3], strict=True) if n > 1]
    fits = all(s > 0 and s * x_BTHD.element_size() % 16 == 0 for s in steps)
    if not fits or x_BTHD.stride(-1) != 1 or x_BTHD.data_ptr() % 16:
        x_BTHD = x_BTHD.clone(memory_format=torch.contiguous_format)  # `contiguous` may give back what is not aligned
    # The stride of a dimension of size one is free, but the descriptor wants multiples of 16 bytes.
    strides = [s if n > 1 else x_BTHD.shape[-1] for s, n in zip(x_BTHD.stride()[:3], x_BTHD.shape[:3], strict=True)]
    return x_BTHD, [*strides, 1]
