"""Keys that some later token can still see, as one list over the heads of a batch: each head keeps its own number of keys.

The decay D of a key only falls along a text, so a key with D below the pruning threshold (arXiv 2504.06949) is below it for
every later query, and a head keeps its newest keys: a segment of the list, followed by free slots. New keys are written there,
step by step, also by a CUDA graph; when no slot is left, the list is rebuilt without the evicted keys.

Suffixes: B batch, T tokens, H heads, N = B * H, D head dimension, S slots of the list."""

from typing import Any

import torch
from torch import Tensor

from kernels.forgetting_attention.cached import segments
from models.cache import PLACES, State

SPARE, STRIDE = 8, 2048
"""A list is allocated with an eighth more at its end, and the length of the longest segment is rounded up to multiples of
STRIDE, so that the list can be rebuilt in its own memory for a while."""


def listed(k_BTHD: Tensor, v_BTHD: Tensor, gate_sum_BTH: Tensor, real_BT: Tensor, threshold_N: Tensor) -> State:
    """List the real keys whose decay up to the last token is not below their head's threshold, with their values and the
    running sums of the log gate."""
    threshold_B1H = threshold_N.view(len(gate_sum_BTH), 1, -1)
    seen_BTH = real_BT[..., None] & (gate_sum_BTH[:, -1:] - gate_sum_BTH >= threshold_B1H)
    seen_BHT = seen_BTH.transpose(1, 2)
    keys = {"k": k_BTHD.transpose(1, 2)[seen_BHT], "v": v_BTHD.transpose(1, 2)[seen_BHT]}
    keys["gate_sum"] = gate_sum_BTH.transpose(1, 2)[seen_BHT]
    return _spread(keys, seen_BHT.sum(-1).flatten(), threshold_N.float().contiguous())


def laid_anew(keys: State) -> tuple[State, bool]:
    """Evict the keys that no later token can see, and make slots for as many new ones as before. Return the list, and whether
    it is still in the same memory."""
    row_S, held_S = segments(keys["first"], keys["length"], len(keys["k"]))
    now_N = keys["gate_sum"][keys["first"] + keys["length"] - 1]
    seen_S = held_S & (now_N[row_S] - keys["gate_sum"] >= keys["threshold"][row_S])
    kept = {name: keys[name][seen_S] for name in ("k", "v", "gate_sum")}
    length_N = torch.zeros_like(keys["length"], dtype=torch.int64).index_add(0, row_S, seen_S.long())
    if len(kept["k"]) + len(length_N) * PLACES > len(keys["k"]) or int(length_N.max()) + PLACES > keys["most"]:
        return _spread(kept, length_N, keys["threshold"]), False
    _lay(keys, kept, length_N)
    return keys, True


def add(keys: State, k_ND: Tensor, v_ND: Tensor, gate_sum_N: Tensor) -> None:
    """Append the keys, values and sums of one token to each head's segment."""
    place_N = (keys["first"] + keys["length"]).long()
    for name, new in (("k", k_ND), ("v", v_ND), ("gate_sum", gate_sum_N)):
        keys[name].index_copy_(0, place_N, new.to(keys[name].dtype))
    keys["length"] += 1


def _spread(kept: dict[str, Tensor], length_N: Tensor, threshold_N: Tensor) -> State:
    """Allocate a new list for these keys, which are given without gaps."""
    places, most = len(kept["k"]) + len(length_N) * PLACES, int(length_N.max()) + PLACES
    places = max(places + places // SPARE, most)
    state: dict[str, Any] = {name: x.new_zeros(places, *x.shape[1:]) for name, x in kept.items()}
    state |= {name: torch.zeros_like(length_N, dtype=torch.int32) for name in ("first", "length")}
    state |= {"threshold": threshold_N, "most": min(places, -(-most // STRIDE) * STRIDE)}
    _lay(state, kept, length_N)
    return state


def _lay(keys: State, kept: dict[str, Tensor], length_N: Tensor) -> None:
    row_S = torch.repeat_interleave(length_N, output_size=len(kept["k"]))
    place_S = torch.arange(len(row_S), device=row_S.device) + row_S * PLACES
    for name, values in kept.items():
        keys[name].index_copy_(0, place_S, values)
    keys["length"].copy_(length_N)
    keys["first"].copy_((length_N + PLACES).cumsum(0) - length_N - PLACES)
