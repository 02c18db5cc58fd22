"""Pruning: passes over the same documents with and without it, with counts of skipped tiles in the attention layers.

Suffixes: B batch, T tokens (or keys), Q queries, H heads, M query tiles."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.sampler import bos_roll
from eval.per_token_loss.measure import document_losses
from eval.pruning.spec import Spec
from eval.runner.context import Compute, Context
from eval.runner.heldout import open_heldout
from eval.runner.loading import Loaded
from kernels.forgetting_attention import TILE, attention_without_tiles, forgetting_attention, gates_of_sums
from models.forgetting_transformer.module import ForgettingAttention, gated_layers, pruning
from training.progress import Progress

Layers = Mapping[int, ForgettingAttention]
Attend = Callable[[ForgettingAttention, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(layer, q, k, v, log gate) -> the attention's output."""
Skip = Callable[[ForgettingAttention, Tensor, Tensor, Tensor], Tensor]
"""(layer, q, k, log gate) -> leading key tiles that each query tile skips, int32 (B, H, M)."""


@contextmanager
def attending(layers: Layers, attend: Attend) -> Iterator[None]:
    """Replace the attention of the layers by `attend`."""
    for layer in layers.values():
        # The other arguments are unused: no text is padded here, and no FoX of the papers has a window.
        layer.attend = lambda q, k, v, f, start, layer=layer: attend(layer, q, k, v, f)  # type: ignore
        layer.attend_newest = lambda q, k, v, sums, *_, layer=layer: attend(layer, q, k, v, gates_of_sums(sums))  # type: ignore
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.__dict__["attend"], layer.__dict__["attend_newest"]


def attend_whole(layer: ForgettingAttention, q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor) -> Tensor:
    return forgetting_attention(q, k, v, log_fgate)


class Pruned:
    """Pruned attention, which records what it skips in each document by layer and head."""

    def __init__(self, spec: Spec):
        self.spec, self.document = spec, 0
        self.rows: list[dict[str, Any]] = []
        self._keys: dict[int, list[np.ndarray]] = {}

    def attend(self, layer: ForgettingAttention, q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor) -> Tensor:
        count_BHM = layer.pruned_tiles(q, k, log_fgate, self.spec.log_tolerance, self.spec.tile)
        self._count(layer.layer_idx, count_BHM[0].cpu().numpy(), q.shape[1], k.shape[1])
        if self.spec.tile == TILE:  # the kernels' own
            return forgetting_attention(q, k, v, log_fgate, **layer.pruning(q, k, self.spec.log_tolerance))
        return attention_without_tiles(q, k, v, log_fgate, count_BHM, self.spec.tile)[0]

    def _count(self, layer: int, count_HM: np.ndarray, num_queries: int, num_keys: int) -> None:
        if num_queries == 1:  # a decoded token
            self._keys.setdefault(layer, []).append(num_keys - self.spec.tile * count_HM[:, 0])
        elif num_keys == self.spec.context_len:  # not the prompt of `_decoded`
            share_H = count_HM.sum(1) / np.arange(1, count_HM.shape[1] + 1).sum()
            self._add("tiles_pruned", layer, share_H)
            if self.document == 0:
                for (head, position), count in np.ndenumerate(count_HM):
                    self.rows.append(_row("first_tile", count, 0, layer, head, position))

    def _add(self, quantity: str, layer: int, values_H: np.ndarray) -> None:
        self.rows += [_row(quantity, value, self.document, layer, head) for head, value in enumerate(values_H)]

    def end_document(self) -> None:
        for layer, counts in self._keys.items():
            self._add("keys_read", layer, np.mean(counts, axis=0))
        self._keys.clear()
        self.document += 1


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return counts and losses. ValueError for a model without forget gates, and as in eval/per_token_loss."""
    corpus = open_heldout(spec, loaded, context)
    model, compute = loaded.model, context.compute(spec.precision)
    layers = gated_layers(model)
    pruned, rows = Pruned(spec), []

    def skip(layer: ForgettingAttention, q: Tensor, k: Tensor, log_fgate: Tensor) -> Tensor:
        return layer.pruned_tiles(q, k, log_fgate, spec.log_tolerance, spec.tile)

    with pruning(layers.values(), spec.log_tolerance, spec.rule), Progress("pruning", spec.num_documents) as progress:
        for document in range(spec.num_documents):
            target_T = corpus.heldout.read(slice(document, document + 1), 0, spec.context_len)[0]
            if document == 0:
                dropped = most_dropped(model, layers, target_T, corpus.spec.bos_id, compute, skip, spec.tile)
                rows += [_row("dropped", value, 0, layer, head) for (layer, head), value in dropped.items()]
            for ending, attend in (("", attend_whole), ("_pruned", pruned.attend)):
                with attending(layers, attend):
                    whole = document_losses(model, target_T, corpus.spec.bos_id, compute, document)
                    decoded = _decoded(model, target_T, corpus.spec.bos_id, spec.decoded_tokens, compute)
                rows += [_row(f"loss{ending}", whole.mean(), document), _row(f"decoded_loss{ending}", decoded, document)]
            pruned.end_document()
            progress.advance()
    return pd.DataFrame([*rows, *pruned.rows])


def _inputs(target_T: np.ndarray, bos_id: int, device: str) -> Tensor:
    return bos_roll(target_T[None], bos_id)[0].to(device)


def _decoded(model: nn.Module, target_T: np.ndarray, bos_id: int, count: int, compute: Compute) -> float:
    """Return the mean loss of the last `count` tokens, decoded one at a time from the cache."""
    inputs_BT = _inputs(target_T, bos_id, compute.device)
    losses = []
    with compute.inference():
        cache = model(input_ids=inputs_BT[:, :-count], use_cache=True, logits_to_keep=1).past_key_values
        for place in range(len(target_T) - count, len(target_T)):
            logits_V = model(input_ids=inputs_BT[:, place : place + 1], past_key_values=cache, use_cache=True).logits[0, -1]
            losses.append(-F.log_softmax(logits_V.double(), -1)[int(target_T[place])])
    return float(torch.stack(losses).mean())


def most_dropped(
    model: nn.Module, layers: Layers, target_T: np.ndarray, bos_id: int, compute: Compute, skip: Skip, tile: int
) -> dict[tuple[int, int], float]:
    """Return the largest attention probability that a query loses by skipped tiles, by layer and head: 1 - exp(lse of the
    remaining keys - lse of all keys), in fp64."""
    found: dict[tuple[int, int], float] = {}

    def attend(layer: ForgettingAttention, q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor) -> Tensor:
        count_BHM = skip(layer, q, k, log_fgate)
        wide = (q.double(), k.double(), v.double(), log_fgate)
        o, all_BHQ = attention_without_tiles(*wide)
        left_BHQ = attention_without_tiles(*wide, count_BHM, tile)[1]
        lost_H = (-torch.expm1(left_BHQ - all_BHQ)).clamp(min=0)[0].amax(-1)
        found.update({(layer.layer_idx, head): lost for head, lost in enumerate(lost_H.tolist())})
        return o.to(q.dtype)

    with compute.inference(), attending(layers, attend):
        model(input_ids=_inputs(target_T, bos_id, compute.device), use_cache=False, logits_to_keep=1)
    return found


def _row(quantity: str, value: float, document: int, layer: int = -1, head: int = -1, position: int = -1) -> dict[str, Any]:
    return dict(quantity=quantity, document=document, layer=layer, head=head, position=position, value=float(value))
