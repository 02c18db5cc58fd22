"""Greedy generation for many prompts of different lengths: sorted, left-padded batches, cached decoding, bounded memory."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteriaList

from eval.runner.batching import check_positions, is_out_of_memory, recorded
from eval.runner.context import Compute, Context
from eval.runner.loading import Loaded
from eval.runner.spec import Precision
from models.build import spec_of
from models.cache import DecodingCache
from models.causal_lm import CausalLM

Stop = Callable[[list[int]], bool]
NewCache = Callable[[int], DecodingCache]


def greedy(
    model: PreTrainedModel,
    compute: Compute,
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
    stop: Stop | None = None,
    cache: NewCache | None = None,
) -> Callable[[Sequence[list[int]]], list[list[int]]]:
    """Return a function that continues the prompts (token ids, BOS included) of one batch and returns the new ids of each.

    A sequence ends at `max_new_tokens`, before the first of `stop_ids` (not returned), or after the token that makes
    `stop(new ids)` true. Prompts are left-padded, or continued one by one if padding changes the model's outputs. `cache` makes
    the batch's cache, given the most tokens that a text of it will have (None: `own_cache`). ValueError for a prompt that is
    too long for the model's positions."""
    filler = min(stop_ids, default=0)
    cache = cache or own_cache(model, compute)
    ends = dict(max_new_tokens=max_new_tokens, eos_token_id=sorted(stop_ids) or None, pad_token_id=filler)
    config = GenerationConfig(do_sample=False, use_cache=True, **ends)

    def run(rows: Sequence[list[int]]) -> list[list[int]]:
        longest = max(map(len, rows))
        if len(rows) > 1 and not stands_batches(model):
            return [ids for row in rows for ids in run([row])]
        # The last token generated is never read.
        check_positions(model, longest + max_new_tokens - 1, "choose shorter prompts or fewer new tokens")
        given = _left_padded(rows, filler, compute)

        def stopped(input_ids: torch.Tensor, scores: object, **unused: object) -> torch.Tensor:
            return torch.tensor([stop(row[longest:].tolist()) for row in input_ids], device=input_ids.device)  # type: ignore[misc]

        given["stopping_criteria"] = StoppingCriteriaList([] if stop is None else [stopped])  # type: ignore[list-item]
        if cache is not None:
            given["past_key_values"] = cache(longest + max_new_tokens)
        out_BT = _generated(model, compute, config, given)
        return [_until_stop(row, stop_ids, stop) for row in out_BT[:, longest:].tolist()]

    return run


def stands_batches(model: PreTrainedModel) -> bool:
    """Return whether a model continues a left-padded row of a batch as it does the row alone. Some recurrent models of others
    ignore the mask or mix up the rows' states (RWKV, RecurrentGemma)."""
    return isinstance(model, CausalLM) or not getattr(model, "_is_stateful", False)


def _left_padded(rows: Sequence[list[int]], filler: int, compute: Compute) -> dict[str, Any]:
    """Return the left-padded ids of rows and their mask (B, T)."""
    width = max(map(len, rows))
    ids_BT = torch.tensor([[filler] * (width - len(ids)) + ids for ids in rows], device=compute.device)
    mask_BT = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in rows], device=compute.device)
    return dict(input_ids=ids_BT, attention_mask=mask_BT)


def _generated(model: PreTrainedModel, compute: Compute, config: GenerationConfig, given: dict[str, Any]) -> Any:
    """Call `generate` with this configuration alone."""
    saved = model.generation_config  # the checkpoint's own, from which `generate` would take missing settings
    model.generation_config = GenerationConfig()
    try:
        with compute.inference():
            return model.generate(**given, generation_config=config)  # type: ignore[operator]
    finally:
        model.generation_config = saved


def own_cache(model: PreTrainedModel, compute: Compute) -> NewCache | None:
    """Return the maker of a cache with which a GPU replays decoding steps as one graph; None if the model makes its own."""
    if compute.on_cuda and isinstance(model, CausalLM) and spec_of(model).has_places:
        return lambda longest: DecodingCache(room=longest)
    return None


def seconds_of_tokens(
    model: PreTrainedModel, prompts: Sequence[list[int]], compute: Compute, new_tokens: int, cache: NewCache | None = None
) -> np.ndarray:
    """Return the seconds from one new token to the next, greedy, of one batch of prompts of equal length: (new_tokens,), of
    which the first is the prefill. ValueError if the batch does not fit into the memory, or would not be continued as one."""
    if len(prompts) > 1 and not stands_batches(model):
        raise ValueError(f"{type(model).__name__} mixes up the rows of a batch: ask for batches of 1")
    ticks = list[float]()

    def tick(ids: list[int]) -> bool:
        ticks.append(time.perf_counter())
        return False

    run = greedy(model, compute, new_tokens, stop=tick, cache=cache)
    ticks.append(time.perf_counter())
    try:
        run(prompts)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        what = f"{len(prompts)} texts of {len(prompts[0]) + new_tokens} tokens at a time"
        raise ValueError(f"{what} do not fit into the memory of {compute.device}: ask for fewer or shorter ones") from None
    # `tick` runs for every row after each token, and once more for every token at the end.
    return np.diff([ticks[0], *ticks[1 : 1 + len(prompts) * new_tokens : len(prompts)]])


def answered(
    what: str,
    prompts: Mapping[str, list[int]],
    loaded: Loaded,
    context: Context,
    precision: Precision | None,
    max_new_tokens: int,
) -> dict[str, dict[str, Any]]:
    """Return `recorded` of the greedy answer to each prompt, {"prediction": text} by its key."""
    codec, compute = loaded.tokenizer, context.compute(precision)
    run = greedy(loaded.model, compute, max_new_tokens, end_ids(loaded.model, codec.eos_id))

    def answer(keys: list[str]) -> list[dict[str, Any]]:
        return [{"prediction": codec.decode(new_ids)} for new_ids in run([prompts[key] for key in keys])]

    return recorded(what, {key: len(ids) + max_new_tokens for key, ids in prompts.items()}, context, compute, answer)


def end_ids(model: PreTrainedModel, eos_id: int | None) -> frozenset[int]:
    """Return the tokens that end an answer: the tokeniser's EOS, if any, and those of the checkpoint's generation config (chat
    models have several)."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset({eos_id, *(named if isinstance(named, list) else [named])} - {None})


def _until_stop(ids: list[int], stop_ids: Collection[int], stop: Stop | None) -> list[int]:
    """Cut a row at its own end: `generate` pads rows that finish early."""
    for n, token in enumerate(ids):
        if token in stop_ids:
            return ids[:n]
        if stop is not None and stop(ids[: n + 1]):
            return ids[: n + 1]
    return ids
