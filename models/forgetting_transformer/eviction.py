"""Keys that some later token can still see, as one list over the heads of a batch: each head keeps as many as it remembers.

Forget gates only fall along a text, so that a key whose decay has passed below the threshold of pruning (arXiv 2504.06949) is
below it for every later query, and leaves for good. Suffixes: B batch, T tokens, H heads, N = B * H, D head dimension, S keys
that remain, of all heads."""

import torch
from torch import Tensor

from models.cache import State


def listed(k_BTHD: Tensor, v_BTHD: Tensor, gate_sum_BTH: Tensor, real_BT: Tensor) -> State:
    """List the real keys with their values, running sums of the log gate, and heads, numbered row by row of the batch."""
    B, T, H = gate_sum_BTH.shape
    head_BTH = torch.arange(B * H, device=k_BTHD.device).view(B, 1, H).expand(B, T, H)
    return dict(k=k_BTHD[real_BT].flatten(0, 1), v=v_BTHD[real_BT].flatten(0, 1), gate_sum=gate_sum_BTH[real_BT].flatten(),
                head=head_BTH[real_BT].flatten())  # fmt: skip


def without_unseen(keys: State, now_N: Tensor, threshold_N: Tensor) -> State:
    """Return the keys whose decay up to a token with the running sums `now_N` is not below its head's threshold."""
    head_S = keys["head"]
    seen_S = now_N[head_S] - keys["gate_sum"] >= threshold_N[head_S]
    return {name: values[seen_S] for name, values in keys.items()}


def attend_to_list(q_ND: Tensor, keys: State, now_N: Tensor, scale: float) -> Tensor:
    """Compute forgetting attention of one query per head, with the running sums `now_N`, (N, D); each head has a key."""
    head_S, dtype = keys["head"], torch.promote_types(q_ND.dtype, torch.float32)
    logit_S = scale * (q_ND.to(dtype)[head_S] * keys["k"]).sum(-1) + (now_N[head_S] - keys["gate_sum"]).to(dtype)
    top_N = logit_S.new_zeros(len(q_ND)).scatter_reduce(0, head_S, logit_S, "amax", include_self=False)
    weight_S = (logit_S - top_N[head_S]).exp()
    total_N = torch.zeros_like(top_N).index_add(0, head_S, weight_S)
    o_ND = q_ND.new_zeros(q_ND.shape, dtype=dtype).index_add(0, head_S, weight_S[:, None] * keys["v"])
    return (o_ND / total_N[:, None]).to(q_ND.dtype)
