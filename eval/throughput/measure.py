"""Throughput: timed training steps and timed generation."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pandas as pd

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch
from torch import nn
from transformers import PreTrainedModel

from eval.shell.batching import check_positions
from eval.shell.context import Compute, Context
from eval.shell.generation import generate
from eval.shell.loading import Loaded, vocab_size
from eval.shell.machine import machine_name, peak_memory_gib
from eval.throughput import Spec
from kernels.fla_cpu.tuning import lift_limit
from models.build import build_model, spec_of
from models.count import num_params
from models.loss import token_losses
from models.spec import ForgettingTransformerSpec, ModelSpec
from training.distributed import layers_of
from training.hardware import peak_flops
from training.progress import Progress

QUANTILES = (0.2, 0.5, 0.8)


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """One row of SCHEMA.

    "train": tokens of a step / time of a step; MFU counts 3 forward passes, as the paper does. "generate": new
    tokens per second of the whole batch while decoding (the prefill's own rate is in `context.extras`).
    ValueError on another machine than the spec's. The weights stay as they were.
    """
    machine = machine_name(context.device)
    if machine != spec.machine:
        raise ValueError(f"the evaluation is a timing on {spec.machine}; this is {machine}: plan it for this machine")
    model = loaded.fresh()
    check_positions(model, spec.seq_len + spec.new_tokens * (spec.mode == "generate"), "lower --seq-len")
    lift_limit()  # fla's kernels at their best, as ours are
    own, params = _own_spec(model), num_params(model)
    flops = 2 * params if own is None else own.flops_per_token(spec.seq_len)  # of foreign models the matrices only
    compute, peak = context.compute(spec.precision), peak_flops(torch.device(context.device))
    context.extras |= {"autotune": "full", "batch_size": spec.batch_size, "peak_flops": peak}
    relative = np.full(3, math.nan)
    if spec.mode == "train":
        seconds_RM, memory = _time_steps(model, spec, compute)
        rates = spec.batch_size * spec.seq_len / seconds_RM[:, 0]
        if spec.beside is not None:
            relative = np.quantile(seconds_RM[:, 1] / seconds_RM[:, 0], QUANTILES)
    else:
        prefill, whole = _time_generation(model, spec, compute)
        context.extras["prefill_tokens_per_s"] = spec.batch_size * spec.seq_len / prefill
        rates = spec.batch_size * (spec.new_tokens - 1) / np.maximum(whole - prefill, 1e-9)
        memory = peak_memory_gib(context.device)
    low, median, high = np.quantile(rates, QUANTILES)
    dense = (3 if spec.mode == "train" else 1) * flops * median / peak if peak else math.nan
    prunes = isinstance(own, ForgettingTransformerSpec) and own.prune_log_tolerance is not None
    row: dict[str, Any] = {
        "mode": spec.mode,
        "seq_len": spec.seq_len,
        "tokens_per_s": median,
        "tokens_per_s_low": low,
        "tokens_per_s_high": high,
        **dict(zip(("relative_low", "relative", "relative_high"), relative, strict=True)),
        "mfu": math.nan if prunes else dense,
        "mfu_dense": dense,
        "peak_memory_gib": math.nan if memory is None else memory,
        "params": params,
        "fwd_flops_per_token": float(flops),
        "machine": machine,
    }
    return pd.DataFrame([row])


def _own_spec(model: PreTrainedModel) -> ModelSpec | None:
    """None for a model of others."""
    with suppress(ValueError):
        return spec_of(model)
    return None


def compile_layers(model: PreTrainedModel, compute: Compute) -> None:
    """Attention layers on CUDA, as `run` trains them; fla's layers launch their own fused kernels and gain nothing."""
    if compute.on_cuda and isinstance(_own_spec(model), ForgettingTransformerSpec):
        for layer in layers_of(model):
            layer.compile()


def _random_ids(model: PreTrainedModel, spec: Spec, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size(model), (spec.batch_size, spec.seq_len), generator=generator).to(device)


def in_turn(actions: Sequence[Callable[[], object]], spec: Spec, compute: Compute, progress: Progress) -> np.ndarray:
    """Seconds of each repeat of each action (repeats, actions), one after the other and again from the first."""
    times = np.empty((spec.warmup + spec.repeats, len(actions)))
    for repeat, number in np.ndindex(*times.shape):
        _synchronise(compute)
        start = time.perf_counter()
        actions[number]()
        _synchronise(compute)
        if repeat >= spec.warmup:
            times[repeat, number] = time.perf_counter() - start
        progress.advance()
    return times[spec.warmup :]


def seconds_of(action: Callable[[], object], spec: Spec, compute: Compute, progress: Progress) -> np.ndarray:
    """Of each repeat."""
    return in_turn([action], spec, compute, progress)[:, 0]


@contextmanager
def training_step(model: PreTrainedModel, ids_BT: torch.Tensor, spec: Spec, compute: Compute) -> Iterator[Callable[[], None]]:
    """A step to be called. The learning rate is 0, so that the optimiser does all its work and changes nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.1, fused=compute.on_cuda)
    was_training = model.training
    model.train()
    if spec.activation_checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[operator]

    def step() -> None:
        with compute.autocast():
            loss = token_losses(model, ids_BT, ids_BT.roll(-1, 1)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    try:
        yield step
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"out of memory on {compute.device}: {spec.batch_size} sequences of {spec.seq_len} tokens; lower --batch-size or "
            "switch on --activation-checkpointing"
        ) from error
    finally:
        optimizer.zero_grad(set_to_none=True)
        if spec.activation_checkpointing:
            model.gradient_checkpointing_disable()  # type: ignore[operator]
        model.train(was_training)


def time_training(model: PreTrainedModel, ids_BT: torch.Tensor, spec: Spec, compute: Compute) -> np.ndarray:
    """Seconds of each step of a model alone."""
    with (
        training_step(model, ids_BT, spec, compute) as step,
        Progress("throughput (train)", spec.warmup + spec.repeats) as progress,
    ):
        return seconds_of(step, spec, compute, progress)


def _time_steps(model: PreTrainedModel, spec: Spec, compute: Compute) -> tuple[np.ndarray, float | None]:
    """Seconds of each step of the model, and in turn of the one beside it (repeats, 1 or 2); peak memory (GiB) of it alone."""
    with ExitStack() as stack:
        compile_layers(model, compute)
        steps = [stack.enter_context(training_step(model, _random_ids(model, spec, compute.device), spec, compute))]
        for _ in range(2):  # the first allocates the optimiser's moments
            steps[0]()
        memory = peak_memory_gib(compute.device)
        if spec.beside is not None:
            other = build_model(spec.beside, compute.device)
            compile_layers(other, compute)
            steps.append(stack.enter_context(training_step(other, _random_ids(other, spec, compute.device), spec, compute)))
        with Progress("throughput (train)", len(steps) * (spec.warmup + spec.repeats)) as progress:
            return in_turn(steps, spec, compute, progress), memory


def _time_generation(model: PreTrainedModel, spec: Spec, compute: Compute) -> tuple[float, np.ndarray]:
    """Median seconds to the first new token, and of each repeat to the last."""
    prompts = _random_ids(model, spec, compute.device).tolist()
    budget = spec.batch_size * (spec.seq_len + spec.new_tokens)

    def run(new_tokens: int) -> object:
        return generate(model, prompts, compute, max_new_tokens=new_tokens, batch_tokens=budget)

    with Progress("throughput (generate)", 2 * (spec.warmup + spec.repeats)) as progress:
        prefill = seconds_of(lambda: run(1), spec, compute, progress)
        whole = seconds_of(lambda: run(spec.new_tokens), spec, compute, progress)
    return float(np.median(prefill)), whole


def _synchronise(compute: Compute) -> None:
    if compute.on_cuda:
        torch.cuda.synchronize(compute.device)
