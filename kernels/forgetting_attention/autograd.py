"""The custom operators `forgetting_attention::chunked_forward` and `::chunked_backward` around the PyTorch path."""

import torch
from torch import Tensor

from ..attention_shared.validation import check_values
from .chunked import chunked_backward, chunked_forward
from .pruning.tight import tight_tiles
from .visibility import (
    apply_pruning,
    cumulative_log_gate,
    first_visible_key,
    pruned_tiles,
)


@torch.library.custom_op("forgetting_attention::chunked_forward", mutates_args=())
def chunked_attention(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Forgetting attention on checked arguments (see `forgetting_attention`); threshold is (B, H), tolerance that of "tight".

    Returns output, log-sum-exp (B, H, Q), cumulative log gate (B, H, T) float64, first visible key (B, H, Q) int32.
    """
    # Here rather than in the public function, so that torch.compile need not look into it.
    check_values(log_fgate, seq_start, cu_seqlens)
    Q = q.shape[1]
    cum_BHT = cumulative_log_gate(log_fgate)
    first_key_BHQ = first_visible_key(log_fgate, Q, seq_start, cu_seqlens, window_size)
    if threshold is not None:
        first_key_BHQ = apply_pruning(first_key_BHQ, pruned_tiles(cum_BHT, Q, threshold))
    if tolerance is not None:
        first_key_BHQ = apply_pruning(first_key_BHQ, tight_tiles(q, k, cum_BHT, first_key_BHQ, scale, tolerance))
    o_BQHD, lse_BHQ = chunked_forward(q, k, v, cum_BHT, first_key_BHQ, scale)
    return o_BQHD.contiguous(), lse_BHQ, cum_BHT, first_key_BHQ


@torch.library.custom_op("forgetting_attention::chunked_backward", mutates_args=())
def _backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    cum: Tensor,
    first_key: Tensor,
    scale: float,
    gate_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dcum_BHT = chunked_backward(do, q, k, v, o, lse, cum, first_key, scale)
    return dq.contiguous(), dk.contiguous(), dv.contiguous(), _gate_gradient(dcum_BHT, gate_dtype)


def _gate_gradient(dcum_BHT: Tensor, dtype: torch.dtype) -> Tensor:
    """d loss / d log f_t = sum over s >= t of d loss / d c_s (identity I5), (B, T, H); 0 for the first token."""
    dlog_BHT = dcum_BHT.double().flip(-1).cumsum(-1).flip(-1)
    dlog_BHT[..., 0] = 0.0
    return dlog_BHT.transpose(1, 2).to(dtype).contiguous()


@chunked_attention.register_fake
def _(q, k, v, log_fgate, threshold, tolerance, seq_start, cu_seqlens, window_size, scale):  # type: ignore[no-untyped-def]
    B, Q, H, D = q.shape
    T = k.shape[1]
    stat_dtype = torch.promote_types(q.dtype, torch.float32)
    return (
        q.new_empty(B, Q, H, D),
        q.new_empty(B, H, Q, dtype=stat_dtype),
        q.new_empty(B, H, T, dtype=torch.float64),
        q.new_empty(B, H, Q, dtype=torch.int32),
    )


@_backward.register_fake
def _(do, q, k, v, o, lse, cum, first_key, scale, gate_dtype):  # type: ignore[no-untyped-def]
    B, H, T = cum.shape
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), q.new_empty(B, T, H, dtype=gate_dtype)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, log_fgate, *_, scale = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.scale, ctx.gate_dtype = scale, log_fgate.dtype
    ctx.set_materialize_grads(False)


def _differentiate(ctx, do, *_):  # type: ignore[no-untyped-def]
    no_gradient = (None,) * 6
    if do is None:
        return (None,) * 4 + no_gradient
    q, k, v, o, lse, cum, first_key = ctx.saved_tensors
    grads = _backward(do, q, k, v, o, lse, cum, first_key, ctx.scale, ctx.gate_dtype)
    return (*grads, *no_gradient)


chunked_attention.register_autograd(_differentiate, setup_context=_save)
