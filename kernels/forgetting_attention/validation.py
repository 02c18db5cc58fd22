"""Checks of the forget gates and of pruning; those that all operators share are in `attention_shared.arguments`."""

import os

import torch
from torch import Tensor

from ..attention_shared.arguments import check_limit_values

CHECK_VALUES_VARIABLE = "FORGETTING_ATTENTION_CHECK_VALUES"


def check_gates(q: Tensor, k: Tensor, log_fgate: Tensor) -> None:
    """Check the gates' shape, dtype and device against checked q and k."""
    B, _, H, _ = q.shape
    T = k.shape[1]
    if log_fgate.shape != (B, T, H):
        raise ValueError(f"log_fgate has shape {tuple(log_fgate.shape)}; it must be (B, T, H) = {(B, T, H)}.")
    dtype = log_fgate.dtype
    if dtype != torch.float32 and (dtype != torch.float64 or q.dtype != torch.float64):
        raise ValueError(f"log_fgate has dtype {dtype}; it must be torch.float32 (compute it with logsigmoid there).")
    if log_fgate.device != q.device:
        raise ValueError(f"log_fgate is on {log_fgate.device}; it must be on q's device, {q.device}.")


def check_threshold(threshold: Tensor) -> None:
    """Check a threshold's values, if they may be read."""
    if _may_look(threshold) and not bool((threshold <= 0).all()):
        worst = threshold.nan_to_num(nan=float("inf")).max().item()
        raise ValueError(f"adaptive_threshold reaches {worst} (inf stands for NaN too); a threshold on D must be <= 0.")


def _may_look(values: Tensor) -> bool:
    """Tell whether values may be read: always on a CPU, on a GPU only on request, as reading them synchronises the device;
    never under torch.func, as vmap forbids it."""
    if torch._C._are_functorch_transforms_active():
        return False
    return values.device.type == "cpu" or os.environ.get(CHECK_VALUES_VARIABLE) == "1"


def check_values(log_fgate: Tensor, seq_start: Tensor | None, cu_seqlens: Tensor | None) -> None:
    """Check the values of gates and limits, if they may be read."""
    if not _may_look(log_fgate):
        return
    if not bool((log_fgate <= 0).all()):
        worst = log_fgate.nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()
        raise ValueError(f"log_fgate reaches {worst} (inf stands for NaN too); log gates must be <= 0.")
    check_limit_values(log_fgate.shape[1], seq_start, cu_seqlens)
