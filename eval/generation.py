"""Greedy generation for many prompts of different lengths: sorted, left-padded batches, cached decoding, bounded memory."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from eval.context import inference

BATCH_TOKENS_GPU = 131_072
BATCH_TOKENS_CPU = 8_192
MAX_BATCH = 256

Stop = Callable[[list[int]], bool]


def generate(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    device: str,
    stop_ids: Collection[int] = (),
    stop: Stop | None = None,
    batch_tokens: int | None = None,
    on_done: Callable[[int, list[int]], None] | None = None,
) -> list[list[int]]:
    """Greedy continuations (token ids, prompts left out) of `prompts` (token ids, BOS included), in their order.

    A sequence ends at `max_new_tokens`, before the first of `stop_ids` (not returned), or after the token that makes
    `stop(new ids)` true. `batch_tokens` bounds batch size x (longest prompt + new tokens); a batch that does not fit
    into memory is halved. `on_done(index, ids)` is called as soon as a prompt is finished. The longest come first, so
    that a prompt too long for the machine is known at once: ValueError, as for an empty prompt.
    """
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {i} has no tokens; a prompt begins with BOS")
    if batch_tokens is None:
        batch_tokens = BATCH_TOKENS_CPU if torch.device(device).type == "cpu" else BATCH_TOKENS_GPU
    results: dict[int, list[int]] = {}
    todo = [(batch, batch_tokens) for batch in batches([len(p) for p in prompts], max_new_tokens, batch_tokens)]
    while todo:
        batch, _ = todo.pop(0)
        try:
            rows = _generate_batch(model, [prompts[i] for i in batch], max_new_tokens, device, frozenset(stop_ids), stop)
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            if len(batch) == 1:
                raise ValueError(
                    f"a prompt of {len(prompts[batch[0]])} tokens and {max_new_tokens} new ones does not fit into the memory "
                    f"of {device}; choose shorter prompts or a larger device"
                ) from None
            half = len(batch) // 2
            todo[:0] = [(batch[:half], 0), (batch[half:], 0)]
            if torch.device(device).type == "cuda":
                torch.cuda.empty_cache()
            continue
        for i, ids in zip(batch, rows, strict=True):
            results[i] = ids
            if on_done is not None:
                on_done(i, ids)
    return [results[i] for i in range(len(prompts))]


def batches(lengths: Sequence[int], max_new_tokens: int, batch_tokens: int) -> Iterator[list[int]]:
    """Indices in batches, longest first, each of at most `batch_tokens` tokens (a longer one alone is a batch)."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batch: list[int] = []
    for i in order:
        size = lengths[batch[0]] + max_new_tokens if batch else 0
        if batch and ((len(batch) + 1) * size > batch_tokens or len(batch) == MAX_BATCH):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class _Stop(StoppingCriteria):
    """Which rows are done, by the caller's rule on their new ids."""

    def __init__(self, prompt_len: int, stop: Stop):
        self.prompt_len, self.stop = prompt_len, stop

    def __call__(self, input_ids: torch.Tensor, scores: object, **unused: object) -> torch.Tensor:
        done = [self.stop(row[self.prompt_len :].tolist()) for row in input_ids]
        return torch.tensor(done, device=input_ids.device)


@contextmanager
def _own_generation_config(model: PreTrainedModel) -> Iterator[None]:
    """`generate` fills gaps of its config from the checkpoint's (end tokens, sampling): hide that one for the while."""
    saved = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = saved


def _generate_batch(
    model: PreTrainedModel,
    prompts: list[list[int]],
    max_new_tokens: int,
    device: str,
    stop_ids: frozenset[int],
    stop: Stop | None,
) -> list[list[int]]:
    longest = max(len(prompt) for prompt in prompts)
    filler = min(stop_ids, default=0)
    ids_BT = torch.tensor([[filler] * (longest - len(p)) + p for p in prompts], device=device)
    mask_BT = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(stop_ids) or None,
        pad_token_id=filler,
        use_cache=True,
    )
    criteria = StoppingCriteriaList([] if stop is None else [_Stop(longest, stop)])
    with inference(device), _own_generation_config(model):
        out_BT = model.generate(  # type: ignore[operator]  # every causal LM is a GenerationMixin
            input_ids=ids_BT, attention_mask=mask_BT, generation_config=config, stopping_criteria=criteria
        )
    return [_until_stop(row, stop_ids, stop) for row in out_BT[:, longest:].tolist()]


def _until_stop(ids: list[int], stop_ids: frozenset[int], stop: Stop | None) -> list[int]:
    """Rows that finish early are padded by `generate`; cut each where its own rule ended it."""
    for n, token in enumerate(ids):
        if token in stop_ids:
            return ids[:n]
        if stop is not None and stop(ids[: n + 1]):
            return ids[: n + 1]
    return ids
