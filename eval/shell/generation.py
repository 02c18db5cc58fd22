"""Greedy generation for many prompts of different lengths: sorted, left-padded batches, cached decoding, bounded memory."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from eval.shell.batching import check_positions, in_batches
from eval.shell.context import Compute, Context
from eval.shell.loading import Loaded
from eval.shell.spec import Precision
from training.progress import Progress

Stop = Callable[[list[int]], bool]


def generate(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    compute: Compute,
    *,
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
    stop: Stop | None = None,
    batch_tokens: int | None = None,
    on_done: Callable[[int, list[int]], None] | None = None,
) -> list[list[int]]:
    """Return greedy continuations (token ids, prompts left out) of `prompts` (token ids, BOS included), in their order.

    A sequence ends at `max_new_tokens`, before the first of `stop_ids` (not returned), or after the token that makes
    `stop(new ids)` true. `batch_tokens` and `on_done`: see `in_batches`. ValueError for an empty prompt, and for one that is
    too long for the model's positions or the machine's memory.
    """
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {i} has no tokens; a prompt begins with BOS")
    lengths = [len(prompt) + max_new_tokens for prompt in prompts]
    # The last token generated is never read.
    check_positions(model, max(lengths, default=1) - 1, "choose shorter prompts or fewer new tokens")

    def run(batch: list[int]) -> list[list[int]]:
        return _generate_batch(model, [prompts[i] for i in batch], max_new_tokens, compute, frozenset(stop_ids), stop)

    return in_batches(lengths, compute, run, batch_tokens=batch_tokens, on_done=on_done)


def answer(
    loaded: Loaded,
    prompts: Mapping[str, list[int]],
    context: Context,
    precision: Precision | None,
    max_new_tokens: int,
    progress: Progress,
) -> None:
    """Add the greedy answer to each prompt, {"prediction": text} by its key, to the records of the partial file.

    Answers that are there are not made again.
    """
    codec = loaded.tokenizer
    todo = [key for key in prompts if key not in context.partial.records]

    def keep(index: int, new_ids: list[int]) -> None:
        context.partial.add(todo[index], {"prediction": codec.decode(new_ids)})
        progress.advance()

    generate(
        loaded.model,
        [prompts[key] for key in todo],
        context.compute(precision),
        max_new_tokens=max_new_tokens,
        stop_ids=() if codec.eos_id is None else (codec.eos_id,),
        batch_tokens=context.sources.batch_tokens,
        on_done=keep,
    )


class _Stop(StoppingCriteria):
    """Stopping rule of each row: the caller's, on its new ids."""

    def __init__(self, prompt_len: int, stop: Stop):
        self.prompt_len, self.stop = prompt_len, stop

    def __call__(self, input_ids: torch.Tensor, scores: object, **unused: object) -> torch.Tensor:
        done = [self.stop(row[self.prompt_len :].tolist()) for row in input_ids]
        return torch.tensor(done, device=input_ids.device)


@contextmanager
def _own_generation_config(model: PreTrainedModel) -> Iterator[None]:
    """Hide the checkpoint's own config (end tokens, sampling), from which `generate` would fill gaps."""
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
    compute: Compute,
    stop_ids: frozenset[int],
    stop: Stop | None,
) -> list[list[int]]:
    longest = max(len(prompt) for prompt in prompts)
    filler = min(stop_ids, default=0)
    ids_BT = torch.tensor([[filler] * (longest - len(p)) + p for p in prompts], device=compute.device)
    mask_BT = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=compute.device)
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(stop_ids) or None,
        pad_token_id=filler,
        use_cache=True,
    )
    criteria = StoppingCriteriaList([] if stop is None else [_Stop(longest, stop)])
    with compute.inference(), _own_generation_config(model):
        out_BT = model.generate(  # type: ignore[operator]  # every causal LM is a GenerationMixin
            input_ids=ids_BT, attention_mask=mask_BT, generation_config=config, stopping_criteria=criteria
        )
    return [_until_stop(row, stop_ids, stop) for row in out_BT[:, longest:].tolist()]


def _until_stop(ids: list[int], stop_ids: frozenset[int], stop: Stop | None) -> list[int]:
    """Cut a row where its own rule ended it: `generate` pads those that finish early."""
    for n, token in enumerate(ids):
        if token in stop_ids:
            return ids[:n]
        if stop is not None and stop(ids[: n + 1]):
            return ids[: n + 1]
    return ids
