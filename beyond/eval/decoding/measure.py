"""Decoding: continuations of held-out documents with each kind of cache that a model supports."""

import math
from collections.abc import Sequence
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from beyond.eval.decoding.spec import Spec
from eval.runner.context import Compute, Context
from eval.runner.generation import NewCache, seconds_of_tokens
from eval.runner.heldout import open_heldout
from eval.runner.loading import Loaded
from eval.runner.machine import check_machine, peak_memory_gib, reset_peak_memory
from eval.throughput.measure import QUANTILES
from eval.throughput.spec import FIRST
from kernels.fla_cpu.tuning import lift_limit
from models.build import spec_of
from models.cache import DecodingCache
from models.forgetting_transformer.module import ForgettingAttention, pruning
from training.progress import Progress


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per cache, length and batch size. ValueError on another machine than the spec's, for a model that is not of
    this suite, and as in `open_heldout`."""
    machine = check_machine(spec.machine, context.device)
    corpus, model, compute = open_heldout(spec, loaded, context), loaded.model, context.compute(spec.precision)
    ways, layers = caches(model), _gated(model)
    lift_limit()  # lets fla's kernels be fully tuned, as ours are
    rows = []
    with Progress("decoding", len(ways) * len(spec.lengths) * len(spec.batch_sizes)) as progress:
        for length in spec.lengths:
            for batch_size in spec.batch_sizes:
                given = corpus.heldout.read(slice(0, batch_size), 0, length - spec.new_tokens - 1).tolist()
                prompts = [[corpus.spec.bos_id, *ids] for ids in given]
                for name, new_cache in ways.items():
                    with pruning(layers, spec.log_tolerance if name == "pruned" else None, "acp"):
                        found = decoded(model, prompts, new_cache, spec, compute)
                    rows.append(dict(cache=name, seq_len=length, batch_size=batch_size, **found, machine=machine))
                    progress.advance()
    return pd.DataFrame(rows, columns=list(spec.SCHEMA.columns))


def caches(model: PreTrainedModel) -> dict[str, NewCache]:
    """Return the kinds of cache that a model supports, each with its maker, which takes the tokens of the longest text."""
    placed = spec_of(model).has_places
    found: dict[str, NewCache] = {"whole": lambda longest: DecodingCache(room=longest if placed else None)}
    layers = _gated(model)
    if layers:
        found["pruned"] = found["whole"]
    return found


def _gated(model: PreTrainedModel) -> list[ForgettingAttention]:
    layers = [module for module in model.modules() if isinstance(module, ForgettingAttention)]
    return [layer for layer in layers if layer.spec.forget_gate != "none"]


def decoded(
    model: PreTrainedModel, prompts: Sequence[list[int]], new_cache: NewCache, spec: Spec, compute: Compute
) -> dict[str, Any]:
    """Continue a batch of prompts of equal length, first once untimed, and return the columns of its row. ValueError if the
    batch does not fit into memory."""
    batch_size, tokens = len(prompts), sum(map(len, prompts))
    prefills, steps = list[float](), list[float]()
    caches = list[DecodingCache]()

    def cache(longest: int) -> DecodingCache:
        caches[:] = [new_cache(longest)]
        return caches[0]

    for repeat in range(1 + spec.repeats):
        caches.clear()  # frees its memory
        reset_peak_memory(compute.device)
        seconds = seconds_of_tokens(model, prompts, compute, spec.new_tokens, cache)
        if repeat:
            prefills.append(float(seconds[0]))
            steps += seconds[1 + FIRST :].tolist()
    low, median, high = np.quantile(batch_size / np.array(steps), QUANTILES)
    memory = peak_memory_gib(compute.device)
    return dict(
        tokens_per_s=median, tokens_per_s_low=low, tokens_per_s_high=high,
        prefill_tokens_per_s=tokens / float(np.median(prefills)), cache_bytes=caches[0].nbytes,
        peak_memory_gib=math.nan if memory is None else memory,
    )  # fmt: skip
