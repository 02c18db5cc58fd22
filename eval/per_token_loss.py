"""Per-token loss L(i) on long held-out documents (Fig. 2 and every loss curve of the paper; perplexity follows from it)."""

import time

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from eval.context import Context, inference
from eval.loading import vocab_size
from eval.progress import Progress
from eval.spec import PerTokenLossSpec
from models.loss import token_losses

SECONDS_BETWEEN_SAVES = 20.0


def evaluate(model: PreTrainedModel, tokenizer: object, spec: PerTokenLossSpec, context: Context) -> pd.DataFrame:
    """Rows (position, loss, num_documents): mean negative log-likelihood in nats of token i (1-based), given BOS and the
    tokens before it, over the first documents of the held-out split; one forward pass per document, summed in fp64.

    `context.extras` gets unigram_entropy (nats per token of the evaluated targets), train_seq_len, context_len and
    seconds_per_document (median, without the first, which may compile).
    Raises ValueError for too few or too short documents, token ids outside the model's vocabulary, and a NaN loss.
    """
    targets_NT = _held_out(model, spec, context)
    state = context.partial.load_state()
    total_T = np.zeros(spec.context_len) if state is None else state["total"]
    counts_V = np.zeros(vocab_size(model), np.int64) if state is None else state["counts"]
    done = 0 if state is None else int(state["done"])

    seconds: list[float] = []
    saved = time.monotonic()
    with Progress("per-token loss", spec.num_documents, done) as progress:
        try:
            while done < spec.num_documents:
                target_T = targets_NT.read(slice(done, done + 1), 0, spec.context_len)[0].astype(np.int64)
                started = time.perf_counter()
                loss_T = _document_losses(model, target_T, context, done)
                seconds.append(time.perf_counter() - started)
                # One assignment: an interrupt falls before it or after it, never between sum and count.
                total_T, counts_V, done = (
                    total_T + loss_T,
                    counts_V + np.bincount(target_T, minlength=len(counts_V)),
                    done + 1,
                )
                progress.advance()
                if time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                    _save(context, total_T, counts_V, done)
                    saved = time.monotonic()
        except BaseException:
            _save(context, total_T, counts_V, done)
            raise

    share_V = counts_V[counts_V > 0] / counts_V.sum()
    context.extras["unigram_entropy"] = float(-(share_V * np.log(share_V)).sum())
    context.extras["train_seq_len"] = context.train_seq_len
    context.extras["context_len"] = spec.context_len
    if len(seconds) > 1:
        context.extras["seconds_per_document"] = round(float(np.median(seconds[1:])), 4)
    return pd.DataFrame(
        {
            "position": np.arange(1, spec.context_len + 1),
            "loss": total_T / spec.num_documents,
            "num_documents": spec.num_documents,
        }
    )


def _save(context: Context, total_T: np.ndarray, counts_V: np.ndarray, done: int) -> None:
    context.partial.save_state({"total": total_T, "counts": counts_V, "done": np.array(done)})


def _held_out(model: PreTrainedModel, spec: PerTokenLossSpec, context: Context):
    corpus = context.need_corpus()
    documents, document_len = corpus.heldout.shape
    if spec.num_documents > documents:
        raise ValueError(f"num_documents {spec.num_documents} exceeds the {documents} held-out documents of the corpus")
    if spec.context_len > document_len:
        raise ValueError(f"context_len {spec.context_len} exceeds the {document_len} tokens of the corpus's documents")
    if corpus.spec.vocab_size > vocab_size(model):
        raise ValueError(
            f"the corpus has token ids up to {corpus.spec.vocab_size - 1} ({corpus.spec.tokenizer}), the model's vocabulary "
            f"is {vocab_size(model)}: prepare the corpus with the model's own tokeniser"
        )
    return corpus.heldout


def _document_losses(model: PreTrainedModel, target_T: np.ndarray, context: Context, document: int) -> np.ndarray:
    """fp64 losses (T,) of one document; the inputs are the targets rolled right by one with BOS in front."""
    targets_BT = torch.from_numpy(target_T)[None].to(context.device)
    inputs_BT = targets_BT.roll(1, dims=1)
    inputs_BT[:, 0] = context.need_corpus().spec.bos_id
    try:
        with inference(context.device):
            loss_T = token_losses(model, inputs_BT, targets_BT)[0].double().cpu().numpy()
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"out of memory on {context.device} with one document of {len(target_T)} tokens; lower --context-len"
        ) from error
    except IndexError as error:  # learned absolute positions end somewhere
        raise ValueError(f"the model cannot read {len(target_T)} tokens ({error}); lower --context-len") from error
    bad = ~np.isfinite(loss_T)
    if bad.any():
        raise ValueError(f"held-out document {document}: the loss of token {int(bad.argmax()) + 1} is {loss_T[bad.argmax()]}")
    return loss_T
