"""Prompts of different lengths in batches of bounded memory, the longest first, halved where one does not fit."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import nn

from eval.shell.context import Compute

BATCH_TOKENS_GPU = 131_072
BATCH_TOKENS_CPU = 8_192
MAX_BATCH = 256

Result = TypeVar("Result")


def in_batches(
    lengths: Sequence[int],
    compute: Compute,
    run: Callable[[list[int]], list[Result]],
    *,
    batch_tokens: int | None = None,
    on_done: Callable[[int, Result], None] | None = None,
) -> list[Result]:
    """Return what `run(indices)` gives for each of the prompts, in their order. `lengths`: their tokens, new ones included.

    `batch_tokens` bounds batch size x longest prompt; None chooses by device. `on_done(index, result)` is called as soon as a
    prompt is finished. The longest come first, so that a prompt too long for the machine is known at once: ValueError.
    """
    budget = batch_tokens or (BATCH_TOKENS_GPU if compute.on_cuda else BATCH_TOKENS_CPU)
    results: dict[int, Result] = {}
    todo = list(batches(lengths, budget))
    while todo:
        batch = todo.pop(0)
        try:
            found = run(batch)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            if len(batch) == 1:
                raise ValueError(
                    f"a prompt of {lengths[batch[0]]} tokens (new ones included) does not fit into the memory of "
                    f"{compute.device}; choose shorter prompts or a larger device"
                ) from None
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


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield indices in batches, longest first, each of at most `batch_tokens` tokens (a longer one alone is a batch)."""
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
    """Raise ValueError if the model has learned fewer positions; beyond them lies other memory, or an abort."""
    config = getattr(model, "config", None)
    limit = getattr(config, "max_position_embeddings", None)
    learned = any(
        isinstance(module, nn.Embedding) and ("pos" in name.rpartition(".")[2] or name.endswith("wpe"))
        for name, module in model.named_modules()
    )
    if learned and limit is not None and num_tokens > limit:
        raise ValueError(f"{num_tokens} tokens are more than the {limit} positions that the model has learned; {remedy}")
