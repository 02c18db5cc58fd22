"""Speed and memory of training steps and of generation (Table 6). Comparable between models on one device, as ratios."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import pandas as pd
import torch
from torch import nn
from transformers import PreTrainedModel

from eval.context import Context
from eval.generation import generate
from eval.loading import vocab_size
from eval.progress import Progress
from eval.run import device_name
from eval.spec import ThroughputSpec
from models.build import spec_of
from models.count import num_params
from models.loss import token_losses
from training.hardware import peak_flops


def evaluate(model: PreTrainedModel, tokenizer: object, spec: ThroughputSpec, context: Context) -> pd.DataFrame:
    """One row (mode, seq_len, tokens_per_s, mfu, peak_memory_gib, params, fwd_flops_per_token, gpu).

    "train": tokens of a step / median time of a step; MFU counts 3 forward passes, as the paper does. "generate": new
    tokens per second of the whole batch while decoding (the prefill's own rate is in `context.extras`).
    peak_memory_gib is NaN on the CPU, mfu NaN on a device of unknown peak. The weights stay as they were.
    """
    params, forward_flops = _size(model, spec.seq_len)
    _reset_peak_memory(context.device)
    if spec.mode == "train":
        seconds = _time_training(model, spec, context)
        tokens_per_s = spec.batch_size * spec.seq_len / seconds
        flops_per_s = 3 * forward_flops * tokens_per_s
    else:
        prefill, whole = _time_generation(model, spec, context)
        context.extras["prefill_tokens_per_s"] = spec.batch_size * spec.seq_len / prefill
        tokens_per_s = spec.batch_size * (spec.new_tokens - 1) / max(whole - prefill, 1e-9)
        flops_per_s = forward_flops * tokens_per_s
    peak = peak_flops(torch.device(context.device))
    context.extras |= {"batch_size": spec.batch_size, "peak_flops": peak}
    row: dict[str, Any] = {
        "mode": spec.mode,
        "seq_len": spec.seq_len,
        "tokens_per_s": tokens_per_s,
        "mfu": flops_per_s / peak if peak else float("nan"),
        "peak_memory_gib": _peak_memory_gib(context.device),
        "params": params,
        "fwd_flops_per_token": float(forward_flops),
        "gpu": device_name(context.device),
    }
    return pd.DataFrame([row])


def _size(model: PreTrainedModel, seq_len: int) -> tuple[int, int]:
    """Parameters (input embedding excluded) and forward FLOPs per token; of foreign models the matrices only."""
    params = num_params(model)
    try:
        return params, spec_of(model).flops_per_token(seq_len)
    except ValueError:
        return params, 2 * params


def _random_ids(model: PreTrainedModel, spec: ThroughputSpec, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size(model), (spec.batch_size, spec.seq_len), generator=generator).to(device)


def _median_seconds(action: Callable[[], object], spec: ThroughputSpec, device: str, progress: Progress) -> float:
    times = []
    for repeat in range(spec.warmup + spec.repeats):
        _synchronise(device)
        start = time.perf_counter()
        action()
        _synchronise(device)
        if repeat >= spec.warmup:
            times.append(time.perf_counter() - start)
        progress.advance()
    return statistics.median(times)


def _time_training(model: PreTrainedModel, spec: ThroughputSpec, context: Context) -> float:
    """Seconds per step. The learning rate is 0, so that the optimiser does all its work and changes nothing."""
    kind = torch.device(context.device).type
    ids_BT = _random_ids(model, spec, context.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.1, fused=kind == "cuda")
    was_training = model.training
    model.train()
    if spec.activation_checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[operator]

    def step() -> None:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind != "cpu"):
            loss = token_losses(model, ids_BT, ids_BT.roll(-1, 1)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    try:
        with Progress("throughput (train)", spec.warmup + spec.repeats) as progress:
            return _median_seconds(step, spec, context.device, progress)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"out of memory on {context.device}: {spec.batch_size} sequences of {spec.seq_len} tokens; lower --batch-size or "
            "switch on --activation-checkpointing"
        ) from error
    finally:
        optimizer.zero_grad(set_to_none=True)
        if spec.activation_checkpointing:
            model.gradient_checkpointing_disable()  # type: ignore[operator]
        model.train(was_training)


def _time_generation(model: PreTrainedModel, spec: ThroughputSpec, context: Context) -> tuple[float, float]:
    """Seconds to the first new token, and to the last."""
    prompts = _random_ids(model, spec, context.device).tolist()
    budget = spec.batch_size * (spec.seq_len + spec.new_tokens)

    def run(new_tokens: int) -> object:
        return generate(model, prompts, max_new_tokens=new_tokens, device=context.device, batch_tokens=budget)

    with Progress("throughput (generate)", 2 * (spec.warmup + spec.repeats)) as progress:
        prefill = _median_seconds(lambda: run(1), spec, context.device, progress)
        whole = _median_seconds(lambda: run(spec.new_tokens), spec, context.device, progress)
    return prefill, whole


def _synchronise(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak_memory(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory_gib(device: str) -> float:
    if torch.device(device).type != "cuda":
        return float("nan")
    return torch.cuda.max_memory_allocated(device) / 2**30
