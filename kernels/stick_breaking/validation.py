"""What the operator accepts. Every ValueError names the argument, its value and what is allowed."""

import os

import torch
from torch import Tensor

from ..attention_shared.validation import DTYPES, HEAD_DIMS

CHECK_VALUES_VARIABLE = "STICK_BREAKING_CHECK_VALUES"


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Shapes, dtypes and devices."""
    for name, tensor, layout in (("q", q, "(B, Q, H, D)"), ("k", k, "(B, T, Hkv, D)"), ("v", v, "(B, T, Hkv, D)")):
        if tensor.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {layout}.")
    B, Q, H, D = q.shape
    T, key_heads = k.shape[1:3]
    if 0 in q.shape or 0 in k.shape:
        raise ValueError(f"q has shape {tuple(q.shape)} and k {tuple(k.shape)}; no dimension may be empty.")
    if D not in HEAD_DIMS:
        raise ValueError(f"q has head dimension {D}; allowed are {HEAD_DIMS}.")
    if k.shape[0] != B or k.shape[3] != D:
        raise ValueError(f"k has shape {tuple(k.shape)}; with q {tuple(q.shape)} it must be ({B}, T, Hkv, {D}).")
    if v.shape != k.shape:
        raise ValueError(f"v has shape {tuple(v.shape)}; it must be k's, {tuple(k.shape)}.")
    if Q > T:
        raise ValueError(f"q has {Q} positions and k {T}; queries are the last positions of the keys, so Q <= T.")
    if q.is_cuda and B * H > 65_535:
        raise ValueError(f"q has {B} x {H} sequences and heads; a GPU takes 65535 at once. Split the batch.")
    if H % key_heads:
        raise ValueError(f"q has {H} heads and k {key_heads}; q's must be a multiple of k's.")
    dtypes = (*DTYPES, torch.float64) if q.device.type == "cpu" else DTYPES
    if q.dtype not in dtypes:
        raise ValueError(f"q has dtype {q.dtype}; allowed on {q.device.type} are {', '.join(map(str, dtypes))}.")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} has dtype {tensor.dtype}; it must be q's, {q.dtype}.")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}; it must be on q's device, {q.device}.")


def check_values(num_keys: int, seq_start: Tensor | None, cu_seqlens: Tensor | None) -> None:
    """The checks that read memory: always on CPU, on a GPU only on request, as each costs a synchronisation."""
    limit = seq_start if seq_start is not None else cu_seqlens
    if limit is None or (limit.is_cuda and os.environ.get(CHECK_VALUES_VARIABLE) != "1"):
        return
    if seq_start is not None and not bool(((seq_start >= 0) & (seq_start <= num_keys)).all()):
        raise ValueError(f"seq_start is {seq_start.tolist()}; every start must be in 0..{num_keys}.")
    if cu_seqlens is not None:
        steps = cu_seqlens.diff()
        if int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != num_keys or not bool((steps > 0).all()):
            raise ValueError(f"cu_seqlens is {cu_seqlens.tolist()}; it must rise strictly from 0 to {num_keys}.")
