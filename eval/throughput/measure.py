"""Throughput: timed training steps, the same as in training runs, and timed generation."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pandas as pd

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch
from transformers import PreTrainedModel

from eval.runner.batching import check_positions
from eval.runner.context import Compute, Context
from eval.runner.generation import seconds_of_tokens
from eval.runner.loading import Loaded, vocab_size
from eval.runner.machine import check_machine, peak_memory_gib
from eval.throughput.spec import FIRST, Spec
from kernels.fla_cpu.tuning import lift_limit
from models.build import build_model, num_params, spec_of
from models.spec import ModelSpec
from training.distributed import World
from training.hardware import peak_flops
from training.progress import Progress
from training.spec import Execution, TrainSpec, fitted
from training.step import EAGER_STEPS, repeated_step

QUANTILES = (0.2, 0.5, 0.8)


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return one row of speed and memory. "train": tokens of a step / time of a step; MFU counts 3 forward passes, as in the
    paper. "generate": new tokens per second of the whole batch while decoding (the prefill's own rate is in `context.extras`);
    its FLOPs are those of a token after `seq_len` others, the mean of a sequence of twice that length.
    ValueError on another machine than the spec's. The weights are not changed."""
    machine = check_machine(spec.machine, context.device)
    model = loaded.fresh()
    check_positions(model, spec.seq_len + spec.new_tokens * (spec.mode == "generate"), "lower --seq-len")
    lift_limit()  # lets fla's kernels be fully tuned, as ours are
    own, params, counted = _own_spec(model), num_params(model), spec.seq_len * (2 if spec.mode == "generate" else 1)
    flops = 2 * params if own is None else own.flops_per_token(counted)  # for foreign models, matrix products only
    compute, peak = context.compute(spec.precision), peak_flops(torch.device(context.device))
    context.extras |= {"autotune": "full", "batch_size": spec.batch_size, "peak_flops": peak}
    relative = np.full(3, math.nan)
    executed = 1.0 if own is None or not own.prunes else _executed_share(model, own, spec, compute)
    if spec.mode == "train":
        seconds_RM, memory = _time_steps(model, spec, compute)
        rates = spec.batch_size * spec.seq_len / seconds_RM[:, 0]
        if spec.beside is not None:
            relative = np.quantile(seconds_RM[:, 1] / seconds_RM[:, 0], QUANTILES)
    else:
        prefill, tokens = _time_generation(model, spec, compute)
        context.extras["prefill_tokens_per_s"] = spec.batch_size * spec.seq_len / prefill
        rates = spec.batch_size / tokens
        memory = peak_memory_gib(context.device)
    low, median, high = np.quantile(rates, QUANTILES)
    dense = (3 if spec.mode == "train" else 1) * flops * median / peak if peak else math.nan
    row: dict[str, Any] = dict(mode=spec.mode, seq_len=spec.seq_len)
    row |= dict(tokens_per_s=median, tokens_per_s_low=low, tokens_per_s_high=high)
    row |= zip(("relative_low", "relative", "relative_high"), relative, strict=True)
    row |= dict(mfu=dense * executed, mfu_dense=dense, peak_memory_gib=math.nan if memory is None else memory)
    row |= dict(params=params, fwd_flops_per_token=float(flops), machine=machine)
    return pd.DataFrame([row], columns=list(spec.SCHEMA.columns))


def _own_spec(model: PreTrainedModel) -> ModelSpec | None:
    """Return the spec of a model of ours; None for another one."""
    with suppress(ValueError):
        return spec_of(model)
    return None


def _executed_share(model: PreTrainedModel, own: ModelSpec, spec: Spec, compute: Compute) -> float:
    """Return the executed share of a step's FLOPs, measured in a forward pass of its first sequence; NaN for generation, whose
    passes skip other shares."""
    if spec.mode == "generate":
        return math.nan
    with compute.inference(), model.model.measuring() as found:
        model(_random_ids(model, spec)[:1].to(compute.device), use_cache=False, logits_to_keep=1)
    share = float(torch.stack(found["pruned_share"]).mean())
    return own.executed_flops_per_token(spec.seq_len, share) / own.flops_per_token(spec.seq_len)


def _random_ids(model: PreTrainedModel, spec: Spec) -> torch.Tensor:
    """Return token ids (batch, seq_len) on the host."""
    return torch.randint(vocab_size(model), (spec.batch_size, spec.seq_len), generator=torch.Generator().manual_seed(0))


def seconds_of(what: str, actions: Sequence[Callable[[], object]], spec: Spec, compute: Compute) -> np.ndarray:
    """Time the actions in turn and return the seconds (repeats, actions), without the warm-up. `what`: title of the progress
    bar."""
    wait = functools.partial(torch.cuda.synchronize, compute.device) if compute.on_cuda else lambda: None
    times = np.empty((spec.warmup + spec.repeats, len(actions)))
    with Progress(what, times.size) as progress:
        for repeat, number in np.ndindex(*times.shape):
            wait()
            start = time.perf_counter()
            actions[number]()
            wait()
            if repeat >= spec.warmup:
                times[repeat, number] = time.perf_counter() - start
            progress.advance()
    return times[spec.warmup :]


@contextmanager
def training_step(model: PreTrainedModel, ids_BT: torch.Tensor, spec: Spec, compute: Compute) -> Iterator[Callable[[], None]]:
    """Yield a function that takes one training step on these ids, on one device, as the spec says. The model is restored
    afterwards."""
    tokens, was_training, repeated = ids_BT.numel(), model.training, torch.are_deterministic_algorithms_enabled()
    once: dict[str, Any] = dict(batch_tokens=tokens, train_tokens=tokens, warmup_tokens=0, peak_lr=1.0)
    train = TrainSpec(seq_len=spec.seq_len, precision=compute.precision, **once)
    execution = Execution(activation_checkpointing=spec.activation_checkpointing, cuda_graph=spec.step == "graph")
    wished: dict[str, Any] = dict(micro_batch_tokens=spec.micro_batch_tokens, compile=spec.compile)
    execution = fitted(execution, _own_spec(model), train, compute.device, **wished)
    try:
        with repeated_step(model, ids_BT, train, execution, World(0, 1, torch.device(compute.device))) as step:
            yield step
    except torch.OutOfMemoryError as error:
        full = f"out of memory on {compute.device} with micro-batches of {execution.micro_batch_tokens or tokens} tokens"
        raise ValueError(f"{full}; lower --micro-batch-tokens or switch on --activation-checkpointing") from error
    finally:
        torch.use_deterministic_algorithms(repeated)
        model.zero_grad(set_to_none=True)
        if spec.activation_checkpointing:
            model.gradient_checkpointing_disable()  # type: ignore[operator]
        model.train(was_training)


def _time_steps(model: PreTrainedModel, spec: Spec, compute: Compute) -> tuple[np.ndarray, float | None]:
    """Return the seconds of the model's steps, alternating with those of the model beside it (repeats, 1 or 2), and the peak
    memory (GiB) of the model alone."""
    with ExitStack() as stack:
        steps = [stack.enter_context(training_step(model, _random_ids(model, spec), spec, compute))]
        first = EAGER_STEPS + 1 if spec.step == "graph" else 1  # the first compile and tune, the last is captured
        for _ in range(first + 1):
            steps[0]()
        memory = peak_memory_gib(compute.device)
        if spec.beside is not None:
            other = build_model(spec.beside, compute.device)
            steps.append(stack.enter_context(training_step(other, _random_ids(other, spec), spec, compute)))
            for _ in range(first):
                steps[1]()
        return seconds_of("throughput (train)", steps, spec, compute), memory


def _time_generation(model: PreTrainedModel, spec: Spec, compute: Compute) -> tuple[float, np.ndarray]:
    """Return the median seconds to the first new token, and the seconds of each later one without the first few, of all
    repeats."""
    prompts, found = _random_ids(model, spec).tolist(), list[np.ndarray]()
    with Progress("throughput (generate)", spec.warmup + spec.repeats) as progress:
        for _ in range(spec.warmup + spec.repeats):
            found.append(seconds_of_tokens(model, prompts, compute, spec.new_tokens))
            progress.advance()
    timed = np.stack(found[spec.warmup :])
    return float(np.median(timed[:, 0])), timed[:, 1 + FIRST :].ravel()
