"""Attention of the newest token over a cache that stores running sums of the log gates instead of the gates: the decay of any
key is then one difference, and the keys that pruning keeps are known without a pass over all keys.

Shapes: B batch, T keys, H query heads, Hkv key heads, D head dimension."""

import torch
from torch import Tensor

from ..attention_shared.arguments import (
    as_autocast,
    check_limits,
    check_tensors,
    check_types,
    pick_backend,
    resolve_scale,
    zero_padding,
)
from ..attention_shared.running_sums import running_sums
from .pruning.threshold import resolve_threshold
from .validation import check_values
from .visibility import CUT_LOG_GATE


def sum_log_gates(log_fgate: Tensor, before: Tensor | None = None) -> Tensor:
    """Return the running sums of log gates (B, T, H) as float64, continuing from the previous token's sum (B, 1, H), if any.

    A gate that cuts the sequence, below -2000, counts as -4000: a finite number that hides all keys before it.

    Raises ValueError for a gate above 0 or NaN, if checking it needs no device synchronisation."""
    if type(log_fgate) is Tensor and not torch.compiler.is_compiling():
        check_values(log_fgate, None, None)
    return running_sums(log_fgate.clamp(min=2 * CUT_LOG_GATE), before)


def gates_of_sums(gate_sum: Tensor) -> Tensor:
    """Return the log gates (B, T, H), as float32, with these running sums; 0 for the first, which decays no key. A sum may
    exceed the one before by its rounding error if the gate is open: that gate is 0, as no log gate is positive."""
    return gate_sum.diff(dim=1, prepend=gate_sum[:, :1]).clamp(max=0.0).float()


def forgetting_attention_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_sum: Tensor,
    *,
    scale: float | None = None,
    adaptive_threshold: float | Tensor | None = None,
    seq_start: Tensor | None = None,
    length: Tensor | None = None,
    window_size: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute forgetting attention of the newest token over the keys of a cache, itself included; no gradient.

    The result is that of `forgetting_attention` with one query, except that pruning drops single keys rather than tiles. Keys
    whose D is below -2000 nats are always dropped.

    Args:
        q: (B, 1, H, D), D in {16, 32, 64, 128}. bf16, fp16 or fp32 (float64 too on CPU).
        k, v: (B, T, Hkv, D), H a multiple of Hkv.
        gate_sum: (B, T, H) float64, running sums of the log gates in nats, as `sum_log_gates` returns them. A constant offset
            does not matter. Fastest if T has the smallest stride.
        scale: factor of the logits, defaults to D**-0.5.
        adaptive_threshold: keys whose D is below it (nats, <= 0) are dropped. A float, a tensor broadcastable to (B, H) or
            None (no pruning). See `pruning_threshold`.
        seq_start: (B,) integers, first real position of each left-padded sequence. The output of a padded query is 0.
        length: (1,) int32 on q's device: number of keys that are filled in, at least 1; the newest is the last of them. With
            it, a CUDA graph can be replayed while a preallocated cache fills up. None: all T are.
        window_size: number of last keys that are visible, the newest included.
        backend: "triton", "chunked" or "reference" (here both PyTorch), or "auto": triton for CUDA tensors.

    Returns:
        (B, 1, H, D) in q's dtype (the autocast dtype under autocast).

    Raises:
        ValueError: more than one query, or an invalid shape, dtype, device or option."""
    check_types(q=q, k=k, v=v, gate_sum=gate_sum, length=length)
    q, k, v = as_autocast(q, k, v)
    check_tensors(q, k, v)
    if q.shape[1] != 1:
        raise ValueError(f"q has {q.shape[1]} positions; over a cache it must have one, the newest.")
    sizes = k.shape[0], k.shape[1], q.shape[2]
    if gate_sum.shape != sizes or gate_sum.dtype != torch.float64 or gate_sum.device != q.device:
        given = f"{tuple(gate_sum.shape)} {gate_sum.dtype} on {gate_sum.device}"
        raise ValueError(f"gate_sum is {given}; it must be (B, T, H) = {sizes} torch.float64 on q's device, {q.device}.")
    if isinstance(adaptive_threshold, str):
        raise ValueError(f"adaptive_threshold is {adaptive_threshold!r}; over a cache it must be None, a float or a tensor.")
    check_limits(q, k, seq_start, None, window_size)
    seq_start = None if seq_start is None else seq_start.contiguous()  # the kernel assumes that it is contiguous
    if length is not None:
        _check_length(length, q, k.shape[1], window_size)
    backend = pick_backend(backend, q)
    scale = resolve_scale(scale, q.shape[-1])
    q, k, v, gate_sum = (x.detach() for x in (q, k, v, gate_sum))
    threshold = resolve_threshold(adaptive_threshold, q, k, scale)
    if backend != "triton":
        return _plain(q, k, v, gate_sum, threshold, seq_start, length, window_size, scale)
    from .portable.decode_sums import decode_sums, triton_decode_sums  # imports triton, optional on machines without a GPU

    traced = torch.compiler.is_compiling() or type(q) is not Tensor
    return (triton_decode_sums if traced else decode_sums)(q, k, v, gate_sum, threshold, seq_start, length, window_size, scale)


def _check_length(length: Tensor, q: Tensor, num_keys: int, window_size: int | None) -> None:
    """Check `length` as far as possible without a synchronisation."""
    if length.shape != (1,) or length.dtype != torch.int32 or length.device != q.device:
        given = f"{tuple(length.shape)} {length.dtype} on {length.device}"
        raise ValueError(f"length is {given}; it must be (1,) torch.int32 on q's device, {q.device}.")
    if window_size is not None:
        raise ValueError(f"length with window_size={window_size}: a cache has either `length` or a window; leave one out.")
    _check_length_value(length, num_keys)


def _check_length_value(length: Tensor, num_keys: int) -> None:
    if length.device.type == "cpu" and not 1 <= int(length) <= num_keys:
        raise ValueError(f"length is {int(length)}; it must be in 1..{num_keys}, the size of the cache.")


def _plain(
    q: Tensor, k: Tensor, v: Tensor, gate_sum: Tensor, threshold: Tensor | None, seq_start: Tensor | None,
    length: Tensor | None, window_size: int | None, scale: float,
) -> Tensor:  # fmt: skip
    dtype = torch.promote_types(q.dtype, torch.float32)
    T, key_heads = k.shape[1:3]
    q_BGRD = q[:, 0].to(dtype).unflatten(1, (key_heads, -1))
    newest = gate_sum[:, -1:] if length is None else gate_sum.index_select(1, length - 1)
    decay_BHT = (newest - gate_sum).to(dtype).transpose(1, 2)
    position_T = torch.arange(T, device=q.device)
    limit = CUT_LOG_GATE if threshold is None else threshold.clamp(min=CUT_LOG_GATE)[..., None]
    hidden_BHT = decay_BHT < limit
    if length is not None:
        hidden_BHT = hidden_BHT | (position_T >= length)
        v = v.masked_fill((position_T >= length)[:, None, None], 0.0)  # these may be NaN, and 0 x NaN is NaN
    if window_size is not None:
        hidden_BHT = hidden_BHT | (position_T < T - window_size)
    if seq_start is not None:
        hidden_BHT = hidden_BHT | (position_T < seq_start[:, None, None])
        v = zero_padding(v, seq_start)
    x_BHT = torch.einsum("bgrd,btgd->bgrt", q_BGRD, k.to(dtype)).flatten(1, 2) * scale + decay_BHT
    p_BHT = x_BHT.masked_fill(hidden_BHT, -torch.inf).softmax(-1).masked_fill(hidden_BHT, 0.0)  # NaN if all are hidden
    o_BGRD = torch.einsum("bgrt,btgd->bgrd", p_BHT.unflatten(1, (key_heads, -1)), v.to(dtype))
    return o_BGRD.flatten(1, 2)[:, None].to(q.dtype)
