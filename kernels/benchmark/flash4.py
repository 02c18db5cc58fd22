"""Forgetting attention with FlashAttention-4: the gates are a bias of the scores, which gets no gradient there, and nothing is
pruned.

An extra channel is zero in the keys, and one over the scale in the queries: its gradient in a key is minus the gradient of the
key's sum of gates. A query's own sum has none, as it is constant along its row."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

MORE = {64: 32}
"""Extra channels by D, otherwise eight: the kernel takes multiples of eight, but at 72 and 80 the dQ of 4.0.0b36 is wrong, even
without a bias."""
Softmax = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
"""(q, k (B, T, H, wider), v (B, T, H, D), sums of log gates (B, H, T), scale) -> (B, T, H, D); the sums get no gradient."""


@functools.cache
def flash4_softmax() -> Softmax:
    """Compile FlashAttention-4 with the bias. Raises ImportError if it is not installed."""
    import cutlass  # type: ignore[import-not-found]
    from cutlass import cute  # type: ignore[import-not-found]
    from flash_attn.cute import flash_attn_func  # type: ignore[import-not-found]

    @cute.jit  # type: ignore[untyped-decorator]
    def decayed(score, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        sums = aux_tensors[0]
        batch, head, query, key = (cute.make_rmem_tensor(1, cutlass.Int32) for _ in range(4))
        batch.store(b)
        head.store(h)
        query.store(q_idx)
        key.store(kv_idx)
        bias = cute.make_rmem_tensor(1, cutlass.Float32)
        bias[0] = sums[batch[0], head[0], query[0]] - sums[batch[0], head[0], key[0]]
        return score + bias.load()

    @cute.jit  # type: ignore[untyped-decorator]
    def as_it_is(gradient, score, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):  # type: ignore[no-untyped-def]
        return gradient

    def softmax(q: Tensor, k: Tensor, v: Tensor, sums_BHT: Tensor, scale: float) -> Tensor:
        more = {"score_mod": decayed, "score_mod_bwd": as_it_is, "aux_tensors": [sums_BHT]}
        o, *_ = flash_attn_func(q, k, v, causal=True, softmax_scale=scale, **more)
        assert isinstance(o, Tensor)
        return o

    return softmax


def flash4_forgetting_attention(q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, softmax: Softmax) -> Tensor:
    """Compute attention of q, k, v (B, T, H, D) with log gates (B, T, H)."""
    D = q.shape[-1]
    sums_BTH = log_fgate.double().cumsum(1).to(torch.promote_types(q.dtype, torch.float32))
    given = sums_BTH.detach()
    wide_q = torch.cat([q, torch.full_like(q[..., :1], D**0.5)], -1)
    wide_k = torch.cat([k, (given - sums_BTH).to(k.dtype)[..., None]], -1)  # zero; its gradient is minus that of the sum
    rest = (0, MORE.get(D, 8) - 1)
    return softmax(F.pad(wide_q, rest), F.pad(wide_k, rest), v, given.transpose(1, 2).contiguous(), D**-0.5)
