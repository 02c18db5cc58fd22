"""`python -m experiments.benchmark`: tokens per second, MFU, memory and the time by part of training steps.

The steps are those of trainings (training/step.py; DDP or FSDP2 under torchrun), on random tokens. The rows are
added to results/measurements/training_steps.
"""

import math
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import tyro
from torch import nn

from data.tokenizer import parse_tokenizer
from experiments.recipes import check_name, model_spec
from experiments.scales import get_scale
from kernels.fla_cpu.tuning import lift_limit
from models.build import build_model
from models.spec import ForgettingTransformerSpec
from results.measured import FOLDER, PARTS, add, read
from results.store import read_rows
from training.command_line import guarded, parse
from training.distributed import World, device_label, join_world
from training.hardware import peak_flops
from training.signals import EXIT_FINISHED
from training.spec import Execution, TrainSpec, fitted
from training.step import repeated_step

SHOWN = ("created", "commit", "gpu", "gpus", "parallel", "model", "scale", "seq_len", "sequences_per_gpu", "micro_batches",
         "gates", "prune", "compile", "tokens_per_s", "mfu", "tflops_per_gpu", "peak_memory_gib", "step_ms",
         "first_step_s")  # fmt: skip
KERNELS = (
    ("norms", r"rms_norm|layer_norm|_shift_|gated_norm"),
    ("loss", r"logsumexp|arange_eq_exp|cross_entropy"),
    ("attention", r"^_?(forward|backward|dkdv|dq|before|after|tile|whole|limits|delta|spans|gate)_|flash|attention|cudnn"),
    (
        "recurrence",
        r"^_(sums|states|outputs|pairs|shared|gates|scan)_kernel|selective_scan|"
        r"chunk|gla|delta_rule|fwd_h|bwd_dh|causal_conv|recompute_w|solve_tril|wy|cumsum",
    ),
    ("matmuls", r"gemm|nvjet|cutlass|cublas|matmul|wgmma"),
    ("optimiser", r"multi_tensor|adam|FusedAdam|lpnorm|foreach"),
    ("communication", r"nccl"),
)
"""Parts of a step and the names of their CUDA kernels. The head's matrix products count as matmuls, and what matches none (the
activation of the MLP, casts, sums of gradients) is `other`."""


@dataclass(frozen=True)
class Arguments:
    """Time training steps. Start it with torchrun for several GPUs."""

    models: tyro.conf.Positional[tuple[str, ...]] = ("fox_pro",)
    """Models of the suite, e.g. fox_pro transformer_llama."""
    scale: str = "760m-48b"
    seq_len: int | None = None
    """Default: the scale's training length."""
    sequences: int = 1
    """Sequences per process and micro-batch."""
    micro_batches: int = 1
    """Micro-batches per process and step. The paper's batch is 32 sequences: 16 per process on two GPUs, 4 on eight."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    parallel: Literal["ddp", "fsdp"] = "ddp"
    compile: bool = True
    """Compile the layers on a GPU, of models that gain by it, as `run` does."""
    limit_tuning: bool = False
    """Tune fla's kernels over a few candidates, as `run` does, instead of all: minutes less at the first step."""
    activation_checkpointing: bool = False
    gates: Literal["fresh", "open", "spread"] = "fresh"
    """Forget gates: as initialised (near 0.5), all near 1, or from very local to global over the heads (logits 0 to 9)."""
    prune: bool = False
    """Adaptive computation pruning at log tolerance -10, of the models that have forget gates."""
    tight: bool = False
    """With --prune: by the tight rule."""
    warmup: int = 3
    steps: int = 10
    profile: bool = True
    """Also one step under the profiler, for the time by part."""
    kernels: int = 0
    """Also print the longest kernels of that step, so many."""
    rows: Path = FOLDER
    """Folder that the rows are added to or read from."""
    code: str = ""
    """Which code is measured, where no checkout tells (a commit, a word)."""
    show: bool = False
    """Only print the rows that are there (needs no GPU)."""


def main() -> int:
    arguments = parse(Arguments, None, "python -m experiments.benchmark", __doc__)
    return guarded(lambda: show(arguments.rows) if arguments.show else time_models(arguments))


def show(folder: Path) -> int:
    rows = read("training_steps", folder)
    print(rows[list(SHOWN)].assign(created=rows.created.str[:10]).to_string(index=False, na_rep=""))
    return EXIT_FINISHED


def time_models(arguments: Arguments) -> int:
    for name in arguments.models:
        check_name(name)
    if arguments.tight and not arguments.prune:
        raise ValueError("--tight says how to prune; give --prune too")
    with join_world(arguments.device, timeout_minutes=10) as world:
        for name in arguments.models:
            prune = arguments.prune and name.startswith("fox")
            row = measure(name, replace(arguments, prune=prune, tight=prune and arguments.tight), world)
            if world.is_main:  # kept at once: the next model may not fit
                path = add("training_steps", [row], device_label(world.device), code=arguments.code, folder=arguments.rows)
                print(f"{read_rows(path)[0].iloc[0].dropna().to_string()}\n", flush=True)
            if world.device.type == "cuda":
                torch._dynamo.reset()
                torch.cuda.empty_cache()
    return EXIT_FINISHED


def measure(name: str, arguments: Arguments, world: World) -> dict[str, object]:
    """Return one row: the median over `steps` steps after `warmup`, and the seconds to the end of the first."""
    started, on_gpu = time.perf_counter(), world.device.type == "cuda"
    scale = get_scale(arguments.scale)
    seq_len = arguments.seq_len or scale.seq_len
    spec = model_spec(name, scale, parse_tokenizer(scale.default_tokenizer).vocab_size)
    if arguments.prune:
        assert isinstance(spec, ForgettingTransformerSpec)
        spec = replace(spec, prune_log_tolerance=-10.0, prune_tightly=arguments.tight)
    share = arguments.sequences * arguments.micro_batches * seq_len
    batch_tokens = share * world.size
    train = TrainSpec(
        seq_len=seq_len,
        batch_tokens=batch_tokens,
        train_tokens=batch_tokens,
        warmup_tokens=0,
        peak_lr=1.0,
        precision="bf16" if on_gpu else "fp32",
    )
    given = Execution(parallel=arguments.parallel, activation_checkpointing=arguments.activation_checkpointing)
    micro = arguments.sequences * seq_len
    execution = fitted(
        given, spec, train, world.device.type, micro_batch_tokens=micro, compile=arguments.compile, processes=world.size
    )
    torch.manual_seed(0)
    model = build_model(spec)
    if not arguments.limit_tuning:
        lift_limit()
    set_gates(model, arguments.gates)
    ids_BT = torch.randint(spec.vocab_size, (train.batch_size // world.size, seq_len))
    with repeated_step(model, ids_BT, train, execution, world) as step:
        build_s = time.perf_counter() - started
        first_step_s, *times = _time_steps(step, arguments, world)
        parts = time_by_part(step, world, arguments.kernels) if arguments.profile and on_gpu else {}
    seconds = statistics.median(times)
    flops_per_gpu = share / seconds * 3 * spec.flops_per_token(seq_len)
    peak = peak_flops(world.device)
    return {
        "model": f"{name}, tightly pruned" if arguments.tight else name,
        "scale": arguments.scale,
        "gpus": world.size,
        "seq_len": seq_len,
        "sequences_per_gpu": arguments.sequences,
        "micro_batches": arguments.micro_batches,
        "parallel": arguments.parallel if world.size > 1 else "",
        "compile": execution.compile,
        "activation_checkpointing": arguments.activation_checkpointing,
        "gates": arguments.gates,
        "prune": arguments.prune,
        "tokens_per_s": round(batch_tokens / seconds),
        "step_ms": round(1e3 * seconds, 2),
        "step_ms_slowest": round(1e3 * max(times), 2),
        "mfu": math.nan if peak is None else round(flops_per_gpu / peak, 4),
        "tflops_per_gpu": round(flops_per_gpu / 1e12, 1),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if on_gpu else math.nan,
        "build_s": round(build_s, 1),
        "first_step_s": round(first_step_s, 1),
        **{f"{part}_ms": round(parts[part], 2) if part in parts else math.nan for part in PARTS},
    }


def set_gates(model: nn.Module, gates: Literal["fresh", "open", "spread"]) -> None:
    """Set the logits of the forget gates near 9, or spread over heads as linspace(0, 9) plus N(0, 1) noise per token."""
    if gates == "fresh":
        return
    for module in model.modules():
        gate = getattr(module, "fgate_proj", None)
        if isinstance(gate, nn.Linear):
            heads, hidden_size = gate.weight.shape
            nn.init.normal_(gate.weight, std=hidden_size**-0.5)
            with torch.no_grad():
                gate.bias.copy_(torch.linspace(0, 9, heads) if gates == "spread" else torch.full((heads,), 12.0))


def _time_steps(step: Callable[[], None], arguments: Arguments, world: World) -> list[float]:
    """Return the seconds of the first step, then of `steps` steps after `warmup` more."""

    def synchronise() -> None:
        if world.device.type == "cuda":
            torch.cuda.synchronize()

    def timed() -> float:
        synchronise()
        start = time.perf_counter()
        step()
        synchronise()
        return time.perf_counter() - start

    first = timed()
    for _ in range(arguments.warmup):
        step()
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    return [first, *(timed() for _ in range(arguments.steps))]


def time_by_part(step: Callable[[], None], world: World, num_kernels: int = 0) -> dict[str, float]:
    """Return the milliseconds of one step under the profiler by what the CUDA kernels do; `idle` is time in which none ran. The
    `num_kernels` longest are printed to stderr."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    parts: dict[str, float] = defaultdict(float)
    names: dict[str, float] = defaultdict(float)
    intervals = []
    for event in profiler.events():
        if str(event.device_type) != "DeviceType.CUDA":
            continue
        part = next((part for part, pattern in KERNELS if re.search(pattern, event.name, re.IGNORECASE)), "other")
        milliseconds = event.time_range.elapsed_us() / 1e3
        parts[part] += milliseconds
        names[f"{part}: {event.name[:100]}"] += milliseconds
        intervals.append((event.time_range.start, event.time_range.end))
    if world.is_main:
        for name, milliseconds in sorted(names.items(), key=lambda item: -item[1])[:num_kernels]:
            print(f"{milliseconds:9.2f} ms  {name}", file=sys.stderr)
    busy, end = 0.0, 0.0
    for start, stop in sorted(intervals):
        busy += max(0.0, stop - max(start, end)) / 1e3
        end = max(end, stop)
    if intervals:
        parts["idle"] = (end - min(start for start, _ in intervals)) / 1e3 - busy
    return parts


if __name__ == "__main__":
    sys.exit(main())
