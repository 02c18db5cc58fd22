"""The computation on GPUs, by the kernels of `portable`."""

import torch
from torch import Tensor

from .options import Backend, Options
from .portable.backward import backward
from .portable.forward import forward
from .portable.tiles import GRAIN, plan_for


def _forward(
    q: Tensor, k: Tensor, v: Tensor, first_key: Tensor | None, options: Options
) -> tuple[Tensor, Tensor, list[Tensor]]:
    tiles = plan_for(q.shape[-1], q.dtype, q.device).forward
    o, remainder, *kept = forward(q, k, v, first_key, options.scale, options.attend_current, tiles)
    return o, remainder, kept


def _backward(
    do: Tensor,
    dremainder: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    remainder: Tensor,
    kept: list[Tensor],
    first_key: Tensor | None,
    options: Options,
) -> tuple[Tensor, Tensor, Tensor]:
    spent, oldest = kept
    plan, dremainder = plan_for(q.shape[-1], q.dtype, q.device), dremainder.contiguous()
    limits = first_key, options.scale, options.attend_current
    return backward(do, dremainder, q, k, v, remainder, spent, oldest, *limits, plan)


def _kept_like(q: Tensor) -> list[Tensor]:
    B, Q, H, _ = q.shape
    oldest = q.new_empty(B, H, (Q + GRAIN - 1) // GRAIN, dtype=torch.int32)
    return [q.new_empty(B, H, Q, dtype=torch.float64), oldest]


BACKEND = Backend(_forward, _backward, _kept_like)
