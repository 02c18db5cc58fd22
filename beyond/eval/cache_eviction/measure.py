"""Eviction: two passes over the same documents, one with all keys and one with the remaining keys, computed alike.

Suffixes: B batch, T tokens, Q queries, D documents, L layers, H heads, P depths."""

from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import numpy as np
import pandas as pd
from torch import Tensor

from beyond.eval.cache_eviction.spec import Spec
from eval.per_token_loss.measure import document_losses
from eval.pruning.measure import attending, most_dropped
from eval.runner.context import Context
from eval.runner.heldout import open_heldout
from eval.runner.loading import Loaded
from kernels.forgetting_attention import attention_without_tiles, skipped_tiles
from models.forgetting_transformer.module import ForgettingAttention, gated_layers
from training.progress import Progress


def evicted_keys(layer: ForgettingAttention, q: Tensor, k: Tensor, log_fgate: Tensor, log_tolerance: float) -> Tensor:
    """Count the leading keys that are evicted for each query and all later ones, int32 (B, H, Q)."""
    return skipped_tiles(q, k, log_fgate, tile=1, adaptive_threshold=layer.threshold(q, k, log_tolerance))


def attend_to_all(layer: ForgettingAttention, q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor) -> Tensor:
    return attention_without_tiles(q, k, v, log_fgate)[0]


class Evicting:
    """Attention to the remaining keys, which records their number. `keys`: an array (H, P) per layer and document; `key_bytes`:
    size of one head's key, value and gate; `whole_bytes`: the same without the gate."""

    def __init__(self, spec: Spec):
        self.spec, self.keys = spec, list[np.ndarray]()
        self.key_bytes = self.whole_bytes = 0

    def attend(self, layer: ForgettingAttention, q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor) -> Tensor:
        evicted_BHQ = evicted_keys(layer, q, k, log_fgate, self.spec.log_tolerance)
        position_P = np.array(self.spec.positions)
        self.keys.append(position_P - evicted_BHQ[0].cpu().numpy()[:, position_P - 1])
        self.whole_bytes = sum(each.shape[-1] * each.element_size() for each in (k, v))
        self.key_bytes = self.whole_bytes + log_fgate.element_size()
        return attention_without_tiles(q, k, v, log_fgate, evicted_BHQ, tile=1)[0]


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return counts, bytes and losses. ValueError for a model without forget gates, and as in eval/per_token_loss."""
    corpus = open_heldout(spec, loaded, context)
    model, compute = loaded.model, context.compute(spec.precision)
    layers = gated_layers(model)
    evicting, rows = Evicting(spec), list[dict[str, Any]]()
    bos_id = corpus.spec.bos_id

    def evicted_before(layer: ForgettingAttention, q: Tensor, k: Tensor, log_fgate: Tensor) -> Tensor:
        return evicted_keys(layer, q, k, log_fgate, spec.log_tolerance)

    with Progress("cache eviction", spec.num_documents) as progress:
        for document in range(spec.num_documents):
            target_T = corpus.heldout.read(slice(document, document + 1), 0, spec.context_len)[0]
            if document == 0:
                dropped = most_dropped(model, layers, target_T, bos_id, compute, evicted_before, tile=1)
                rows += [_row("dropped", value, layer=layer, head=head) for (layer, head), value in dropped.items()]
            for quantity, attend in (("loss", attend_to_all), ("loss_evicted", evicting.attend)):
                with attending(layers, attend):
                    loss_T = document_losses(model, target_T, bos_id, compute, document)
                rows.append(_row(quantity, loss_T.mean(), document))
            progress.advance()
    return pd.DataFrame([*rows, *_counts(evicting, list(layers))])


def _counts(evicting: Evicting, layers: list[int]) -> list[dict[str, Any]]:
    """Return rows of keys by head, and of bytes by document."""
    keys_DLHP = np.stack(evicting.keys).reshape(-1, len(layers), *evicting.keys[0].shape)
    num_documents, num_layers, num_heads, _ = keys_DLHP.shape
    rows = []
    for place, position in enumerate(evicting.spec.positions):
        mean_LH = keys_DLHP[..., place].mean(0)
        for (at, head), mean in np.ndenumerate(mean_LH):
            rows.append(_row("keys", mean, layer=layers[at], head=head, position=position))
        for document in range(num_documents):
            remaining = keys_DLHP[document, ..., place].sum() * evicting.key_bytes
            rows.append(_row("bytes", remaining, document, position=position))
        whole = num_layers * num_heads * position * evicting.whole_bytes
        rows.append(_row("bytes_of_all", whole, position=position))
    return rows


def _row(quantity: str, value: float, document: int = -1, **place: int) -> dict[str, Any]:
    return dict(quantity=quantity, document=document, value=float(value)) | dict(layer=-1, head=-1, position=-1) | place
