"""The public function: checks its arguments, reduces the limits to the first visible key, picks a backend."""

import torch
from torch import Tensor

from ..attention_shared.arguments import (
    as_autocast,
    check_limits,
    check_tensors,
    check_types,
    pick_backend,
    refuse_transforms,
    resolve_scale,
    zero_padding,
)
from .autograd import Options, attend
from .reference import reference_attention
from .visibility import first_visible_key


def stick_breaking_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    attend_current: bool = False,
    seq_start: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute stick-breaking attention (arXiv 2410.17980): o_i = sum over j < i of A_ij v_j, with A_ij = beta_ij * prod over j
    < k < i of (1 - beta_ik) and beta_ij = sigmoid(scale * q_i . k_j).

    Going back from the query, each key takes its share of the stick that the nearer keys left. No position encoding is
    needed. Rows do not sum to 1: the rest is the remainder. Computed in log space with float32 sums; once a row's stick is
    used up to below float32's rounding, older keys are skipped (see `visibility`).

    Args:
        q: (B, Q, H, D), the last Q <= T positions of the keys' sequence; D in {16, 32, 64, 128}. bf16, fp16 or fp32 (float64
            too on CPU). Any strides; only the last dimension should be contiguous to avoid a copy.
        k, v: (B, T, Hkv, D), H a multiple of Hkv. A NaN or infinity in v may reach queries that do not see its key (0 x NaN
            is NaN); one before `seq_start` only with "triton".
        scale: factor of the logits, defaults to D**-0.5.
        attend_current: a query sees the key at its own position too. Without it the first query sees nothing.
        seq_start: (B,) integers, first real position of each left-padded sequence.
        cu_seqlens: (documents + 1,) integers from 0 to T, boundaries of documents, which may be empty, packed in a batch of
            one; needs Q == T.
        backend: "triton", "chunked" (PyTorch in blocks of queries), "reference" (`reference_attention`, memory quadratic in T),
            or "auto": triton for CUDA tensors, chunked for others.

    Returns:
        o: (B, Q, H, D) in q's dtype (the autocast dtype under autocast); 0 for a query that sees nothing.
        remainder: (B, Q, H), 1 - sum over j of A_ij, float32 (float64 for float64 inputs). Add `remainder * v` for the variant
            in which a token's own value takes the rest.

    Raises:
        ValueError: an invalid shape, dtype, device, option or, if checking it needs no device synchronisation, value. Set
            STICK_BREAKING_CHECK_VALUES=1 to check values on a GPU, too."""
    check_types(q=q, k=k, v=v)
    q, k, v = as_autocast(q, k, v)
    check_tensors(q, k, v)
    check_limits(q, k, seq_start, cu_seqlens, None)
    backend = pick_backend(backend, q)
    scale = resolve_scale(scale, q.shape[-1])
    if seq_start is not None and backend != "triton":
        v = zero_padding(v, seq_start)
    if backend == "reference":
        first_key = first_visible_key(q.shape[0], q.shape[1], k.shape[1], seq_start, cu_seqlens)
        return reference_attention(q, k, v, scale=scale, attend_current=attend_current, first_key_BQ=first_key)
    if not torch.compiler.is_compiling():
        refuse_transforms()
    return attend(q, k, v, *Options(seq_start, cu_seqlens, scale, attend_current, backend))[:2]
