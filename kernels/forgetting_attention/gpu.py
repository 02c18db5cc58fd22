"""The custom operators `forgetting_attention::triton_forward` and `::triton_backward` around the GPU kernels, for
torch.compile; for direct calls a function of autograd around the same code, as calling an operator takes 100 us."""

import functools
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..attention_shared.tiles import Tiles, tiles_for
from ..attention_shared.validation import check_values
from .hopper.backward import hopper_backward
from .hopper.forward import BLOCK_M, hopper_forward
from .portable.backward import backward
from .portable.forward import forward
from .portable.prepare import Prepared, prepare
from .portable.tight import tighten
from .visibility import TILE

TILES = str(Path(__file__).parent / "portable" / "tiles.json")
_REDO = Tiles(BLOCK_M, 64, 4, 3)


def _run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_fgate: Tensor,
    threshold: Tensor | None,
    tolerance: float | None,
    seq_start: Tensor | None,
    cu_seqlens: Tensor | None,
    window_size: int | None,
    scale: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Forgetting attention on checked arguments (see `forgetting_attention`); threshold is (B, H), tolerance that of
    "tight", deterministic for the backward pass.

    Returns output, lse and the first four tensors of `Prepared`.
    """
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
    return o, lse, *prepared[:4]


def _has_hopper_kernels(q: Tensor) -> bool:
    """Gluon kernels exist for 16-bit inputs with heads of 64 or 128 on compute capability 9.0."""
    return (
        q.is_cuda
        and q.shape[-1] in (64, 128)
        and q.dtype in (torch.bfloat16, torch.float16)
        and _capability(q.get_device()) == (9, 0)
    )


_capability = functools.cache(torch.cuda.get_device_capability)


def _run_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    local: Tensor,
    base: Tensor,
    first_key: Tensor,
    start: Tensor,
    scale: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    prepared = Prepared(local, base, first_key, start)
    # Adding dQ up with atomics has no fixed order; grouped queries would need a sum over heads.
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    if _has_hopper_kernels(q) and q.shape[2] == k.shape[2] and not deterministic:
        return hopper_backward(do, q, k, v, o, lse, prepared, scale)
    dkdv, dq = (tiles_for(TILES, kernel, q.shape[-1], q.dtype, q.device) for kernel in ("dkdv", "dq"))
    return backward(do, q, k, v, o, lse, prepared, scale, dkdv, dq)


triton_attention = torch.library.custom_op("forgetting_attention::triton_forward", _run_forward, mutates_args=())
_backward = torch.library.custom_op("forgetting_attention::triton_backward", _run_backward, mutates_args=())


@triton_attention.register_fake
def _(q, k, v, log_fgate, threshold, tolerance, seq_start, cu_seqlens, window_size, scale, deterministic):  # type: ignore[no-untyped-def]
    B, Q, H, D = q.shape
    T = k.shape[1]
    N, M = (T + TILE - 1) // TILE, (Q + TILE - 1) // TILE
    local_dtype = torch.float64 if q.dtype == torch.float32 else torch.float32
    return (
        q.new_empty(B, Q, H, D),
        q.new_empty(B, H, Q, dtype=torch.float32),
        q.new_empty(B, H, N * TILE, dtype=local_dtype),
        q.new_empty(B, H, N + 1, dtype=torch.float64),
        q.new_empty(B, H, Q, dtype=torch.int32),
        q.new_empty(B, H, M, dtype=torch.int32),
    )


@_backward.register_fake
def _(do, q, k, v, o, lse, local, base, first_key, start, scale, deterministic):  # type: ignore[no-untyped-def]
    gate_shape = (q.shape[0], k.shape[1], q.shape[2])
    return (*(x.new_empty(x.shape) for x in (q, k, v)), q.new_empty(gate_shape, dtype=torch.float32))


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, *_, scale, deterministic = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.scale, ctx.deterministic = scale, deterministic
    ctx.set_materialize_grads(False)


def _differentiate(ctx, do, *_):  # type: ignore[no-untyped-def]
    if do is None:
        return (None,) * 11
    return (*_backward(do, *ctx.saved_tensors, ctx.scale, ctx.deterministic), *(None,) * 7)


triton_attention.register_autograd(_differentiate, setup_context=_save)


class DirectAttention(torch.autograd.Function):
    """`triton_attention(...)[0]`."""

    @staticmethod
    def forward(ctx, *inputs):  # type: ignore[no-untyped-def]
        output = _run_forward(*inputs)
        _save(ctx, inputs, output)
        return output[0]

    @staticmethod
    def backward(ctx, do):  # type: ignore[no-untyped-def]
        return (_once_differentiable if torch.is_grad_enabled() else _run_and_pad)(ctx, do)


def _run_and_pad(ctx, do):  # type: ignore[no-untyped-def]
    if do is None:
        return (None,) * 11
    return (*_run_backward(do, *ctx.saved_tensors, ctx.scale, ctx.deterministic), *(None,) * 7)  # type: ignore[call-arg]


_once_differentiable = once_differentiable(_run_and_pad)
