"""Forgetting attention with FlexAttention: the gates are a bias of the scores, the mask is causal, and nothing is pruned.

The bias uses float32 sums of gates. The gradient of a query's own sum, constant along its row, is zero and is not computed."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


def flex_forgetting_attention(
    q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, flex: Callable[..., Any] = flex_attention
) -> Tensor:
    """Compute attention of q, k, v (B, T, H, D) with log gates (B, T, H). For speed pass a compiled `flex`; the sums stay
    outside it, as a tensor that a bias captures must be materialised for its gradient to compile."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    # Copies: the gradient of a captured tensor is accumulated in the tensor's own layout, and each may be read only once.
    cum_BHT = log_fgate.transpose(1, 2).double().cumsum(-1).to(dtype)
    of_key = cum_BHT.clone(memory_format=torch.contiguous_format)
    of_query = of_key.detach().clone()

    def decayed(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + (of_query[b, h, i] - of_key[b, h, j])

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = flex(q, k, v, score_mod=decayed, block_mask=_causal(q.shape[2], str(q.device)))
    assert isinstance(o, Tensor)
    return o.transpose(1, 2)


@functools.lru_cache(maxsize=1)  # made once for all steps of a run
def _causal(T: int, device: str) -> BlockMask:
    return create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device=device)
