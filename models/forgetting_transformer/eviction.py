"""Keys that some later token can still see, as one list over the heads of a batch: each head keeps as many as it remembers.

Forget gates only fall along a text, so that a key whose decay has passed below the threshold of pruning (arXiv 2504.06949) is
below it for every later query, and what remains of a head are its newest keys: a segment of the list, with free places behind
it. New keys are written there, step by step, where a CUDA graph can write them too; when no place is left, the list is laid
anew without the keys that are gone.

Suffixes: B batch, T tokens, H heads, N = B * H, D head dimension, S places of the list."""

from typing import Any

import torch
from torch import Tensor

from kernels.forgetting_attention.cached import segments
from models.cache import PLACES, State

SPARE, STRIDE = 8, 2048
"""An eighth of a list is left free at its end, and the longest segment counts in such strides, so that a list can be laid anew
in its own memory for a while."""


def listed(k_BTHD: Tensor, v_BTHD: Tensor, gate_sum_BTH: Tensor, real_BT: Tensor, threshold_N: Tensor) -> State:
    """List the real keys whose decay up to the last token is not below its head's threshold, with their values and the running
    sums of the log gate."""
    threshold_B1H = threshold_N.view(len(gate_sum_BTH), 1, -1)
    seen_BTH = real_BT[..., None] & (gate_sum_BTH[:, -1:] - gate_sum_BTH >= threshold_B1H)
    seen_BHT = seen_BTH.transpose(1, 2)
    keys = {"k": k_BTHD.transpose(1, 2)[seen_BHT], "v": v_BTHD.transpose(1, 2)[seen_BHT]}
    keys["gate_sum"] = gate_sum_BTH.transpose(1, 2)[seen_BHT]
    return _spread(keys, seen_BHT.sum(-1).flatten(), threshold_N.float().contiguous())


def laid_anew(keys: State) -> tuple[State, bool]:
    """Let go of the keys that are gone, and make places for as many new ones as before; and tell whether all lies where it
    did."""
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
    """Write the keys, values and sums of one token behind each head's own."""
    place_N = (keys["first"] + keys["length"]).long()
    for name, new in (("k", k_ND), ("v", v_ND), ("gate_sum", gate_sum_N)):
        keys[name].index_copy_(0, place_N, new.to(keys[name].dtype))
    keys["length"] += 1


def _spread(kept: dict[str, Tensor], length_N: Tensor, threshold_N: Tensor) -> State:
    """Make a list of memory of its own for these keys, which stand side by side."""
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
