"""The public function: checks its arguments, resolves pruning, picks a backend."""

import torch
from torch import Tensor

from ..attention_shared.arguments import (
    as_autocast,
    autocasts,
    check_limits,
    check_tensors,
    check_types,
    pick_backend,
    refuse_transforms,
    resolve_scale,
    zero_padding,
)
from .autograd import DirectAttention, attend
from .options import Options
from .pruning.threshold import LOG_TOLERANCE, first_kept_key, resolve_threshold
from .reference import reference_attention
from .validation import check_gates, check_values
from .visibility import cumulative_log_gate


def forgetting_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_fgate: Tensor,
    *,
    scale: float | None = None,
    adaptive_threshold: float | str | Tensor | None = None,
    log_tolerance: float = LOG_TOLERANCE,
    seq_start: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    window_size: int | None = None,
    deterministic: bool = True,
    backend: str = "auto",
) -> Tensor:
    """Compute causal softmax attention whose logits decay with the forget gates: softmax(scale * Q K^T + D) V (the paper's
    section 3.2).

    D_ij = sum of log f_s over s = j+1..i: a key is decayed by the gates after it, up to and including the query's.

    Args:
        q: (B, Q, H, D), the last Q <= T positions of the keys' sequence; D in {16, 32, 64, 128}. bf16, fp16 or fp32 (float64
            too on CPU, pruned or not). Any strides; only the last dimension should be contiguous to avoid a copy.
        k, v: (B, T, Hkv, D), H a multiple of Hkv. A NaN or infinity in v may reach queries that do not see its key (0 x NaN
            is NaN); one before `seq_start` only with "triton".
        log_fgate: (B, T, H) float32, log of the forget gates, <= 0. -inf (or anything below -2000) cuts the sequence exactly.
        scale: factor of the logits, defaults to D**-0.5.
        adaptive_threshold: adaptive computation pruning. Tiles of 128 x 128 in which every D is below it are skipped. A float,
            a tensor broadcastable to (B, H), "auto" (from the norms of q and k, so that a row loses less than
            e^`log_tolerance` of its probability), "tight" (the same guarantee, checked per tile against the weights of a row's
            newest keys, so that more is skipped; see `tight`; for a single query the same as "auto") or None (no pruning). See
            `pruning_threshold` and `qk_norm_logit_bound`.
        log_tolerance: log of the probability that a row may lose with "auto" and "tight", below 0.
        seq_start: (B,) integers, first real position of each left-padded sequence. Outputs of padded queries are 0.
        cu_seqlens: (documents + 1,) integers from 0 to T, boundaries of documents, which may be empty, packed in a batch of
            one; needs Q == T.
        window_size: a query sees only its last `window_size` keys, itself included.
        deterministic: gradients are bit-for-bit reproducible. Outputs always are, and so are the gradients of every path but
            one: on compute capability 9.0, in 16 bits with D of 64 or 128 and Hkv == H, False accumulates dQ and the gates'
            gradients in no fixed order, which takes up to a tenth less time.
        backend: "triton", "chunked" (PyTorch in blocks of queries, memory linear in T), "reference" (`reference_attention`,
            memory quadratic in T), or "auto": triton for CUDA tensors, chunked for others.

    Returns:
        (B, Q, H, D) in q's dtype (the autocast dtype under autocast).

    Raises:
        ValueError: an invalid shape, dtype, device, option or, if checking it needs no device synchronisation, value. Set
            FORGETTING_ATTENTION_CHECK_VALUES=1 to check values on a GPU, too. torch.compile does not check the values of a
            tensor `adaptive_threshold`."""
    check_types(q=q, k=k, v=v, log_fgate=log_fgate)
    if autocasts(q.device.type):
        q, k, v = as_autocast(q, k, v)
        log_fgate = log_fgate.to(torch.promote_types(q.dtype, torch.float32))
    check_tensors(q, k, v)
    check_gates(q, k, log_fgate)
    if seq_start is not None or cu_seqlens is not None or window_size is not None:
        check_limits(q, k, seq_start, cu_seqlens, window_size)
        # The kernels assume that they are contiguous.
        seq_start, cu_seqlens = (None if x is None else x.contiguous() for x in (seq_start, cu_seqlens))
    backend = pick_backend(backend, q)
    scale = resolve_scale(scale, q.shape[-1])
    rule = adaptive_threshold if isinstance(adaptive_threshold, str) else None
    if rule and not log_tolerance < 0:
        raise ValueError(f"log_tolerance is {log_tolerance}; it must be below 0: the log of a share of the probability.")
    tight = rule == "tight" and q.shape[1] > 1
    adaptive_threshold = "auto" if rule == "tight" else adaptive_threshold
    threshold = None if tight else resolve_threshold(adaptive_threshold, q, k, scale, log_tolerance)
    tolerance = log_tolerance if tight else None
    if seq_start is not None and backend != "triton":
        v = zero_padding(v, seq_start)
    options = Options(threshold, tolerance, seq_start, cu_seqlens, window_size, scale, deterministic, backend)
    if backend == "reference":
        check_values(log_fgate, seq_start, cu_seqlens)
        first_key = first_kept_key(q, k, log_fgate, cumulative_log_gate(log_fgate.detach()), options)
        return reference_attention(q, k, v, log_fgate, scale=scale, first_key_BHQ=first_key)
    traced = torch.compiler.is_compiling() or type(q) is not Tensor or q.is_meta
    if not traced:
        refuse_transforms()
    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, log_fgate))
    if backend == "triton" and q.shape[1] == 1 and cu_seqlens is None and not differentiated:
        from .portable.decode import decode, triton_decode  # imports triton, which machines without a GPU need not have

        if not traced:
            check_values(log_fgate, seq_start, None)
        return (triton_decode if traced else decode)(q, k, v, log_fgate, threshold, seq_start, window_size, scale)
    if traced:
        return attend(q, k, v, log_fgate, *options)[0]
    return DirectAttention.apply(q, k, v, log_fgate, *options)
