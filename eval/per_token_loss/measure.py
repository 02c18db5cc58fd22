"""Per-token loss: the forward passes, summed in fp64."""

import time
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from data.sampler import bos_roll
from eval.per_token_loss.spec import Spec
from eval.runner.batching import check_positions
from eval.runner.context import Compute, Context
from eval.runner.heldout import open_heldout
from eval.runner.loading import Loaded, vocab_size
from models.loss import token_losses
from training.progress import Progress

BANDS = 16
SECONDS_BETWEEN_SAVES = 20.0


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return the negative log-likelihood in nats of each token, given BOS and the tokens before it; one pass per document.
    `context.extras` gets unigram_entropy (nats per token of the evaluated targets). ValueError as in `open_heldout`, and for
    losses that are not finite."""
    corpus = open_heldout(spec, loaded, context)
    check_positions(loaded.model, spec.context_len, "lower --context-len")
    sums = _Sums(spec, context, vocab_size(loaded.model))
    compute = context.compute(spec.precision)
    saved = time.monotonic()
    with Progress("per-token loss", spec.num_documents, sums.done) as progress:
        while sums.done < spec.num_documents:
            target_T = corpus.heldout.read(slice(sums.done, sums.done + 1), 0, spec.context_len)[0]
            sums.add(target_T, document_losses(loaded.model, target_T, corpus.spec.bos_id, compute, sums.done))
            progress.advance()
            if time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                sums.save()
                saved = time.monotonic()
    context.extras["unigram_entropy"] = sums.unigram_entropy
    return sums.rows()


class _Sums:
    """Sums over the first `done` documents, in the partial file. T positions, V vocabulary, N documents, K bands."""

    def __init__(self, spec: Spec, context: Context, vocab: int):
        self.spec, self.partial = spec, context.partial
        count = min(BANDS, spec.context_len)
        self.edges = np.arange(count + 1) * spec.context_len // count
        fresh: dict[str, Any] = dict(total=np.zeros(spec.context_len), counts=np.zeros(vocab, np.int64), done=0)
        found = self.partial.load_state() or fresh | {"bands": np.zeros((spec.num_documents, count))}
        self.total_T, self.counts_V, self.bands_NK = found["total"], found["counts"], found["bands"]
        self.done = int(found["done"])

    def add(self, target_T: np.ndarray, loss_T: np.ndarray) -> None:
        self.bands_NK[self.done] = np.add.reduceat(loss_T, self.edges[:-1]) / np.diff(self.edges)
        self.total_T += loss_T
        self.counts_V += np.bincount(target_T, minlength=len(self.counts_V))
        self.done += 1

    def save(self) -> None:
        values = {"total": self.total_T, "counts": self.counts_V, "bands": self.bands_NK, "done": np.array(self.done)}
        self.partial.save_state(values)

    @property
    def unigram_entropy(self) -> float:
        share_V = self.counts_V[self.counts_V > 0] / self.counts_V.sum()
        return float(-(share_V * np.log(share_V)).sum())

    def rows(self) -> pd.DataFrame:
        documents, bands = self.bands_NK.shape
        positions = np.arange(1, self.spec.context_len + 1)
        whole = dict(document=-1, position=positions, width=1, loss=self.total_T / documents, num_documents=documents)
        ends, widths = (np.tile(each, documents) for each in (self.edges[1:], np.diff(self.edges)))
        of_document = np.repeat(np.arange(documents), bands)
        parts = dict(document=of_document, position=ends, width=widths, loss=self.bands_NK.reshape(-1), num_documents=1)
        return pd.concat([pd.DataFrame(whole), pd.DataFrame(parts)], ignore_index=True)


def document_losses(model: nn.Module, target_T: np.ndarray, bos_id: int, compute: Compute, document: int) -> np.ndarray:
    """Return the fp64 losses (T,) of one document."""
    inputs_BT, targets_BT = (tensor.to(compute.device) for tensor in bos_roll(target_T[None], bos_id))
    try:
        with compute.inference():
            loss_T = token_losses(model, inputs_BT, targets_BT)[0].double().cpu().numpy()
    except torch.OutOfMemoryError as error:
        full = f"out of memory on {compute.device} with one document of {len(target_T)} tokens"
        raise ValueError(f"{full}; lower --context-len") from error
    bad = np.flatnonzero(~np.isfinite(loss_T))
    if len(bad):
        what = f"held-out document {document}: the loss of token {bad[0] + 1} is {loss_T[bad[0]]}"
        raise ValueError(f"{what}: look at the training, or evaluate in fp32")
    return loss_T
