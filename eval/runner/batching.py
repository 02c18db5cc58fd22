"""Batches of prompts of different lengths: of bounded memory, longest first, and halved when one does not fit. Also the
log-probabilities of given continuations, in right-padded batches with the logits of the last positions only."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from eval.runner.context import Compute, Context
from eval.runner.loading import Loaded
from eval.runner.spec import Precision
from training.progress import Progress

BATCH_TOKENS_GPU = 131_072
BATCH_TOKENS_CPU = 8_192
MAX_BATCH = 256

Row = tuple[list[int], int]
"""Token ids, and how many of the last ones are scored."""
Record = dict[str, Any]


def recorded(
    what: str,
    lengths: Mapping[str, int],
    context: Context,
    compute: Compute,
    run: Callable[[list[str]], list[Record]],
    size: int | None = None,
) -> dict[str, Record]:
    """Return the records of the partial file after adding those of missing prompts.

    `run(keys)` computes the records of a batch, each of which is saved at once. `lengths`: tokens of each prompt by key, new
    ones included. A batch has at most `size` prompts, or as many as the device's budget of tokens allows. The longest come
    first, so that ValueError for one too long for the memory is raised early. `what`: title of the progress bar."""
    found, sources = context.partial.records, context.sources
    missing = {key: length for key, length in lengths.items() if key not in found}
    own = math.inf if size is not None else BATCH_TOKENS_GPU if compute.on_cuda else BATCH_TOKENS_CPU
    todo = list(batches(missing, sources.batch_tokens or own, size or MAX_BATCH))
    with Progress(what, len(lengths), len(lengths) - len(missing)) as progress:
        while todo:
            keys = todo.pop(0)
            try:
                records = run(keys)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if len(keys) == 1:
                    what = f"a prompt of {lengths[keys[0]]} tokens (new ones included) does not fit into the memory of"
                    raise ValueError(f"{what} {compute.device}; choose shorter prompts or a larger device") from None
                half = len(keys) // 2
                todo[:0] = [keys[:half], keys[half:]]
                if compute.on_cuda:
                    torch.cuda.empty_cache()
                continue
            for key, record in zip(keys, records, strict=True):
                context.partial.add(key, record)
                progress.advance()
    return found


def is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def batches(lengths: Mapping[str, int], budget: float, size: int = MAX_BATCH) -> Iterator[list[str]]:
    """Yield keys in batches of at most `size`, longest first, whose number times the longest is within the budget (a longer
    prompt forms its own batch)."""
    batch: list[str] = []
    for key in sorted(lengths, key=lambda key: -lengths[key]):
        if batch and ((len(batch) + 1) * lengths[batch[0]] > budget or len(batch) == size):
            yield batch
            batch = []
        batch.append(key)
    if batch:
        yield batch


def check_positions(model: nn.Module, num_tokens: int, remedy: str) -> None:
    """Raise ValueError if the model has learned fewer positions, or has a table of fewer (GPT-J, CodeGen): reading beyond it
    returns other memory or aborts. Without a table max_position_embeddings is no limit: models extrapolate."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if limit is None or num_tokens <= limit:
        return
    tables = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    tables += [name for name, _ in model.named_buffers()]
    if any("pos" in name.rpartition(".")[2] or name.endswith("wpe") for name in tables):
        raise ValueError(f"{num_tokens} tokens are more than the {limit} positions that the model has learned; {remedy}")


def recorded_ends(
    what: str,
    rows: Mapping[str, Row],
    loaded: Loaded,
    context: Context,
    precision: Precision | None,
    read: Callable[[str, torch.Tensor], Record],
    size: int | None = None,
) -> dict[str, Record]:
    """Return `recorded` of `read(key, logits)` for each row, with the logits of its end (see `at_ends`)."""
    compute = context.compute(precision)

    def run(keys: list[str]) -> list[Record]:
        return [read(*each) for each in zip(keys, at_ends(loaded.model, [rows[key] for key in keys], compute), strict=True)]

    return recorded(what, {key: len(ids) for key, (ids, _) in rows.items()}, context, compute, run, size)


def score(row: Row, logits_KV: torch.Tensor) -> tuple[float, bool]:
    """Score the end of a row, given its logits: (log-probability in nats, whether greedy decoding gives it)."""
    ids, count = row
    target_K = torch.tensor(ids[-count:], device=logits_KV.device)
    logprob = -F.cross_entropy(logits_KV, target_K, reduction="none").double().sum()
    return float(logprob), bool((logits_KV.argmax(-1) == target_K).all())


def at_ends(model: nn.Module, rows: Sequence[Row], compute: Compute) -> Iterator[torch.Tensor]:
    """Yield the fp32 logits (K, V) that predict the last K ids of each row (ids, K) of one batch. Rows are right-padded, which
    a causal model does not see. ValueError for rows longer than the model's positions, and for logits without probabilities
    (NaN or inf), with which the first of several answers would always be the best."""
    width = max(len(ids) for ids, _ in rows) - 1
    check_positions(model, width, "choose shorter prompts")
    inputs_BT = torch.tensor([ids[:-1] + [0] * (width + 1 - len(ids)) for ids, _ in rows], device=compute.device)
    first = min(len(ids) - 1 - count for ids, count in rows)
    last = {"logits_to_keep": width - first} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    with compute.inference():
        logits_BKV = model(input_ids=inputs_BT, use_cache=False, **last).logits[:, first - width :]
    for logits_KV, (ids, count) in zip(logits_BKV, rows, strict=True):
        start = len(ids) - 1 - count - first
        end_KV = logits_KV[start : start + count].float()
        if not bool(torch.isfinite(end_KV.logsumexp(-1)).all()):
            what = f"a prompt of {len(ids)} tokens: the logits of its last {count} have no probabilities (NaN or inf)"
            raise ValueError(f"{what}: look at the training, or evaluate in fp32")
        yield end_KV
