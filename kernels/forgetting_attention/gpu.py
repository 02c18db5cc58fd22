"""Backend for GPUs: the kernels of `hopper` where they apply, else those of `portable`."""

import functools
from pathlib import Path

import torch
from torch import Tensor

from ..attention_shared.tiles import Tiles, tiles_for
from .hopper.backward import hopper_backward
from .hopper.forward import BLOCK_M, hopper_forward
from .options import Backend, Options
from .portable.backward import backward
from .portable.forward import forward
from .portable.prepare import Prepared, prepare
from .portable.tight import tighten
from .validation import check_values
from .visibility import TILE

TILES = str(Path(__file__).parent / "portable" / "tiles.json")
_REDO = Tiles(BLOCK_M, 64, 4, 3)


def _forward(q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, options: Options) -> tuple[Tensor, list[Tensor]]:
    """Return the output, and lse with the first four tensors of `Prepared`."""
    threshold, tolerance, seq_start, cu_seqlens, window_size, scale, *_ = options
    check_values(log_fgate, seq_start, cu_seqlens)
    exact = q.dtype == torch.float32
    prepared = prepare(log_fgate, q.shape[1], threshold, seq_start, cu_seqlens, window_size, exact)
    if tolerance is not None:
        tighten(q, k, prepared, scale, tolerance)
    if q.dtype == torch.bfloat16 and _has_hopper_kernels(q):
        o, lse, marks = hopper_forward(q, k, v, prepared, scale)
        forward(q, k, v, prepared, scale, _REDO, redo=(o, lse, marks))
    else:
        o, lse = forward(q, k, v, prepared, scale, tiles_for(TILES, "forward", q.shape[-1], q.dtype, q.device))
    return o, [lse, *prepared[:4]]


def _has_hopper_kernels(q: Tensor) -> bool:
    """Tell whether there are Hopper kernels for q: 16-bit, heads of 64 or 128, compute capability 9.0. (Forward: bfloat16.)"""
    fitting = q.is_cuda and q.shape[-1] in (64, 128) and q.dtype in (torch.bfloat16, torch.float16)
    return fitting and _capability(q.get_device()) == (9, 0)


_capability = functools.cache(torch.cuda.get_device_capability)


def _backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, kept: list[Tensor], scale: float, deterministic: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lse, *rest = kept
    prepared = Prepared(*rest)
    if _has_hopper_kernels(q) and q.shape[2] == k.shape[2]:  # grouped queries would need a sum over heads
        ordered = deterministic or torch.are_deterministic_algorithms_enabled()
        return hopper_backward(do, q, k, v, o, lse, prepared, scale, ordered)
    dkdv, dq = (tiles_for(TILES, kernel, q.shape[-1], q.dtype, q.device) for kernel in ("dkdv", "dq"))
    return backward(do, q, k, v, o, lse, prepared, scale, dkdv, dq)


def _kept_like(q: Tensor, k: Tensor) -> list[Tensor]:
    B, Q, H, _ = q.shape
    N, M = (k.shape[1] + TILE - 1) // TILE, (Q + TILE - 1) // TILE
    local = torch.float64 if q.dtype == torch.float32 else torch.float32
    sizes = ((Q, torch.float32), (N * TILE, local), (N + 1, torch.float64), (Q, torch.int32), (M, torch.int32))
    return [q.new_empty(B, H, size, dtype=dtype) for size, dtype in sizes]


BACKEND = Backend(_forward, _backward, _kept_like)
