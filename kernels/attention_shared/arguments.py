"""Arguments of every attention operator: their checks, the key limits that they set, and their schema in a custom operator."""

import math
import os
from typing import get_type_hints

import torch
from torch import Tensor

HEAD_DIMS = (16, 32, 64, 128)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
BACKENDS = ("auto", "triton", "chunked", "reference")
_KINDS = {Tensor | None: "Tensor?", float | None: "float?", int | None: "SymInt?", float: "float", bool: "bool", str: "str"}


def autocasts(device_type: str) -> bool:
    """Tell whether autocast is enabled. The device type "meta" has none."""
    return device_type != "meta" and torch.is_autocast_enabled(device_type)  # torch 2.11 cannot trace is_autocast_available


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to autocast's dtype if autocast is enabled, except float64 and integers, as PyTorch's own attention does."""
    if not autocasts(tensors[0].device.type):
        return tensors
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def resolve_scale(scale: float | None, head_dim: int) -> float:
    """Return the factor of the logits, a finite number. A scale that requires a gradient is refused: it would get none."""
    if scale is None:
        return float(head_dim**-0.5)
    if isinstance(scale, Tensor) and scale.requires_grad and torch.is_grad_enabled():
        raise ValueError("scale requires a gradient, but would get none: multiply q by it and pass scale=1.0.")
    scale = float(scale)
    if not -math.inf < scale < math.inf:
        raise ValueError(f"scale is {scale}; it must be finite.")
    return scale


def check_types(**tensors: Tensor | None) -> None:
    """Check that every argument that is not None is a tensor."""
    for name, x in tensors.items():
        if x is not None and not isinstance(x, Tensor):
            raise ValueError(f"{name} is of type {type(x).__name__}; it must be a torch.Tensor.")


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check shapes, dtypes and devices. Each attribute is read only once, as reading them dominates the time of short calls."""
    q_shape, k_shape, v_shape, dtype, device = q.shape, k.shape, v.shape, q.dtype, q.device
    for name, shape, layout in (
        ("q", q_shape, "(B, Q, H, D)"),
        ("k", k_shape, "(B, T, Hkv, D)"),
        ("v", v_shape, "(B, T, Hkv, D)"),
    ):
        if len(shape) != 4:
            raise ValueError(f"{name} has shape {tuple(shape)}; it must be {layout}.")
    B, Q, H, D = q_shape
    key_batch, T, key_heads, key_dim = k_shape
    if 0 in q_shape or 0 in k_shape:
        raise ValueError(f"q has shape {tuple(q_shape)} and k {tuple(k_shape)}; no dimension may be empty.")
    if D not in HEAD_DIMS:
        raise ValueError(f"q has head dimension {D}; allowed are {HEAD_DIMS}.")
    if key_batch != B or key_dim != D:
        raise ValueError(f"k has shape {tuple(k_shape)}; with q {tuple(q_shape)} it must be ({B}, T, Hkv, {D}).")
    if v_shape != k_shape:
        raise ValueError(f"v has shape {tuple(v_shape)}; it must be k's, {tuple(k_shape)}.")
    if Q > T:
        raise ValueError(f"q has {Q} positions and k {T}; queries are the last positions of the keys, so Q <= T.")
    if q.is_cuda and B * H > 65_535:
        raise ValueError(f"q has {B} x {H} sequences and heads; a GPU takes 65535 at once. Split the batch.")
    if H % key_heads:
        raise ValueError(f"q has {H} heads and k {key_heads}; q's must be a multiple of k's.")
    if dtype not in DTYPES and (dtype != torch.float64 or device.type != "cpu"):
        dtypes = (*DTYPES, torch.float64) if device.type == "cpu" else DTYPES
        raise ValueError(f"q has dtype {dtype}; allowed on {device.type} are {', '.join(map(str, dtypes))}.")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != dtype:
            raise ValueError(f"{name} has dtype {tensor.dtype}; it must be q's, {dtype}.")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}; it must be on q's device, {device}.")


def check_limits(q: Tensor, k: Tensor, seq_start: Tensor | None, cu_seqlens: Tensor | None, window_size: int | None) -> None:
    """Check shapes, dtypes and devices of the options that hide keys."""
    B, Q = q.shape[:2]
    T = k.shape[1]
    integers = (torch.int32, torch.int64)
    check_types(seq_start=seq_start, cu_seqlens=cu_seqlens)
    if seq_start is not None and (seq_start.shape != (B,) or seq_start.dtype not in integers):
        raise ValueError(f"seq_start is {tuple(seq_start.shape)} {seq_start.dtype}; it must be ({B},) int32 or int64.")
    if cu_seqlens is not None:
        if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2 or cu_seqlens.dtype not in integers:
            shape = tuple(cu_seqlens.shape)
            raise ValueError(f"cu_seqlens is {shape} {cu_seqlens.dtype}; it must be (documents + 1,), int32 or int64.")
        if B != 1 or Q != T:
            raise ValueError(f"cu_seqlens needs one packed sequence with Q == T; got batch {B}, Q = {Q}, T = {T}.")
    for name, tensor in (("seq_start", seq_start), ("cu_seqlens", cu_seqlens)):
        if tensor is not None and tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}; it must be on q's device, {q.device}.")
    if isinstance(window_size, bool) or (window_size is not None and (not isinstance(window_size, int) or window_size < 1)):
        raise ValueError(f"window_size is {window_size!r}; it must be None or an integer >= 1.")


def check_limit_values(num_keys: int, seq_start: Tensor | None, cu_seqlens: Tensor | None) -> None:
    """Check the values of the options that hide keys. Costs a synchronisation on a GPU."""
    if seq_start is not None and not bool(((seq_start >= 0) & (seq_start <= num_keys)).all()):
        raise ValueError(f"seq_start is {seq_start.tolist()}; every start must be in 0..{num_keys}.")
    if cu_seqlens is not None:
        steps = cu_seqlens.diff()
        if int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != num_keys or not bool((steps >= 0).all()):
            raise ValueError(f"cu_seqlens is {cu_seqlens.tolist()}; it must rise from 0 to {num_keys}.")


def pick_backend(backend: str, q: Tensor) -> str:
    """Return the backend that runs: "auto" is triton for CUDA tensors, chunked for others.

    Raises ValueError for an unknown name, and for triton without CUDA tensors and without Triton's interpreter."""
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; allowed are {BACKENDS}.")
    if backend == "auto":
        return "triton" if q.is_cuda else "chunked"
    if backend == "triton" and not q.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(f"backend 'triton' needs CUDA tensors, q is on {q.device}; use 'auto' or 'chunked'.")
    return backend


def refuse_transforms() -> None:
    """Raise under transforms of torch.func, which support plain PyTorch only."""
    if torch._C._are_functorch_transforms_active():
        raise ValueError("transforms (grad, vmap, jvp, ...) of torch.func need backend='reference'.")


def first_key_within(batch: int, position_T: Tensor, seq_start_B: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """Return the first key of each position's document after the left padding, int32 (B, T), non-decreasing along T."""
    first_BT = torch.zeros_like(position_T).expand(batch, -1)
    if cu_seqlens is not None:
        boundaries = cu_seqlens.to(torch.int32).contiguous()
        document_T = torch.searchsorted(boundaries, position_T, right=True) - 1
        first_BT = torch.maximum(first_BT, boundaries[document_T.clamp(0, boundaries.numel() - 1)])
    if seq_start_B is not None:
        first_BT = torch.maximum(first_BT, seq_start_B.to(torch.int32)[:, None])
    return first_BT


def zero_padding(v_BTGD: Tensor, seq_start_B: Tensor) -> Tensor:
    """Replace values before each sequence's start by 0, as a weight of 0 times NaN or infinity is NaN."""
    position_T = torch.arange(v_BTGD.shape[1], device=v_BTGD.device)
    return v_BTGD.masked_fill((position_T < seq_start_B[:, None])[..., None, None], 0.0)


def schema(options: type) -> str:
    """Return the fields of a NamedTuple in PyTorch's operator schema language."""
    return ", ".join(f"{_KINDS[kind]} {name}" for name, kind in get_type_hints(options).items())
