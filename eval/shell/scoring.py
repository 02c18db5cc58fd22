"""Log-probabilities of given continuations, teacher-forced: right-padded batches, logits of the last positions only."""

import inspect
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from eval.shell.batching import check_positions
from eval.shell.context import Compute

Scored = tuple[float, bool]


def score(model: nn.Module, rows: Sequence[tuple[list[int], int]], compute: Compute) -> list[Scored]:
    """Score the last `count` of the ids of each row (ids, count), given those before, in one batch.

    Returns (sum of log-probabilities in nats, whether greedy decoding gives them). Padding stands to the right, where a causal
    model does not look.

    ValueError for rows longer than the model's positions.
    """
    width = max(len(ids) for ids, _ in rows) - 1
    check_positions(model, width, "choose shorter prompts")
    inputs_BT = torch.tensor([ids[:-1] + [0] * (width + 1 - len(ids)) for ids, _ in rows], device=compute.device)
    first = min(len(ids) - 1 - count for ids, count in rows)
    results = []
    with compute.inference():
        logits_BKV = _last_logits(model, inputs_BT, width - first)
        for logits_KV, (ids, count) in zip(logits_BKV, rows, strict=True):
            start = len(ids) - 1 - count - first
            logits = logits_KV[start : start + count].float()
            target = torch.tensor(ids[-count:], device=compute.device)
            logprob = -F.cross_entropy(logits, target, reduction="none").double().sum()
            results.append((float(logprob), bool((logits.argmax(-1) == target).all())))
    return results


def _last_logits(model: nn.Module, inputs_BT: torch.Tensor, count: int) -> torch.Tensor:
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        return model(input_ids=inputs_BT, use_cache=False, logits_to_keep=count).logits
    return model(input_ids=inputs_BT, use_cache=False).logits[:, -count:]
