"""Batches of prompts of different lengths: of bounded memory, longest first, and halved when one does not fit. Also the
log-probabilities of given continuations, in right-padded batches with the logits of the last positions only."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

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

Result = TypeVar("Result")
Row = tuple[list[int], int]
"""Token ids, and how many of the last ones are scored."""
Scored = tuple[float, bool]
Record = dict[str, Any]
_extrapolating: WeakSet[nn.Module] = WeakSet()


def in_batches(
    lengths: Sequence[int],
    compute: Compute,
    run: Callable[[list[int]], list[Result]],
    *,
    batch_tokens: int | None = None,
    on_done: Callable[[int, Result], None] | None = None,
) -> list[Result]:
    """Call `run(indices)` on batches and return the results in the order of the prompts. `lengths`: tokens of each prompt, new
    ones included. `batch_tokens` bounds batch size x longest prompt (None: by device). `on_done(index, result)` is called as
    soon as a prompt is finished. The longest come first, so that ValueError for one too long for the memory is raised early."""
    budget = batch_tokens or (BATCH_TOKENS_GPU if compute.on_cuda else BATCH_TOKENS_CPU)
    results: dict[int, Result] = {}
    todo = list(batches(lengths, budget))
    while todo:
        batch = todo.pop(0)
        try:
            found = run(batch)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                what = f"a prompt of {lengths[batch[0]]} tokens (new ones included) does not fit into the memory of"
                raise ValueError(f"{what} {compute.device}; choose shorter prompts or a larger device") from None
            half = len(batch) // 2
            todo[:0] = [batch[:half], batch[half:]]
            if compute.on_cuda:
                torch.cuda.empty_cache()
            continue
        for i, result in zip(batch, found, strict=True):
            results[i] = result
            if on_done is not None:
                on_done(i, result)
    return [results[i] for i in range(len(lengths))]


def is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def recorded(
    what: str, lengths: Mapping[str, int], context: Context, compute: Compute, run: Callable[[list[str]], list[Record]]
) -> dict[str, Record]:
    """Return the records of the partial file after adding those of missing prompts: `run(keys)` computes the records of a
    batch, and each is saved at once. `lengths`: tokens of the prompts by key; `what`: title of the progress bar."""
    found = context.partial.records
    todo = [key for key in lengths if key not in found]
    with Progress(what, len(lengths), len(lengths) - len(todo)) as progress:

        def keep(index: int, record: Record) -> None:
            context.partial.add(todo[index], record)
            progress.advance()

        own, budget = [lengths[key] for key in todo], context.sources.batch_tokens
        in_batches(own, compute, lambda batch: run([todo[i] for i in batch]), batch_tokens=budget, on_done=keep)
    return found


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield indices in batches, longest first, each of at most `batch_tokens` tokens (a longer prompt forms its own batch)."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batch: list[int] = []
    for i in order:
        if batch and ((len(batch) + 1) * lengths[batch[0]] > batch_tokens or len(batch) == MAX_BATCH):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def check_positions(model: nn.Module, num_tokens: int, remedy: str) -> None:
    """Raise ValueError if the model has learned fewer positions, or has a table of fewer (GPT-J, CodeGen): reading beyond it
    returns other memory or aborts. Warn if a foreign model has no such limit but its config.json names fewer positions."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    tables = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    tables += [name for name, _ in model.named_buffers()]
    bounded = any("pos" in name.rpartition(".")[2] or name.endswith("wpe") for name in tables)
    if limit is None or num_tokens <= limit:
        return
    if bounded:
        raise ValueError(f"{num_tokens} tokens are more than the {limit} positions that the model has learned; {remedy}")
    if model not in _extrapolating:
        _extrapolating.add(model)
        named = f"{num_tokens} tokens are more than the {limit} of the model's config.json (max_position_embeddings)"
        print(f"{named}, beyond which it extrapolates; to stay within, {remedy}", file=sys.stderr)


def recorded_ends(
    what: str,
    rows: Mapping[str, Row],
    loaded: Loaded,
    context: Context,
    precision: Precision | None,
    read: Callable[[str, torch.Tensor], dict[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return `recorded` of `read(key, logits)` for each row, with the logits of its end (see `at_ends`)."""
    compute = context.compute(precision)

    def run(keys: list[str]) -> list[dict[str, Any]]:
        return [read(*each) for each in zip(keys, at_ends(loaded.model, [rows[key] for key in keys], compute), strict=True)]

    return recorded(what, {key: len(ids) for key, (ids, _) in rows.items()}, context, compute, run)


def score(row: Row, logits_KV: torch.Tensor) -> Scored:
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
