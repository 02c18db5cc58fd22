"""`python -m training.benchmark`: tokens per second, MFU, memory and the time by part of real training steps.

Steps go through the same code as training (Stepper, fused AdamW, DDP or FSDP2 under torchrun), on random tokens. Rows are
appended to results/training/benchmark.csv.
"""

import csv
import dataclasses
import datetime
import os
import re
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import nn

from experiments.scales import MODELS, get_scale, model_spec
from models.build import build_model
from models.count import flops_per_token
from models.loss import TokenLoss
from models.spec import ForgettingTransformerSpec, ModelSpec
from training.distributed import World, device_label, join_world, spread
from training.guard import Guard
from training.hardware import peak_flops
from training.optimizer import build_optimizer
from training.provenance import git_state
from training.signals import EXIT_ERROR
from training.spec import TrainSpec
from training.step import Stepper

ROWS = Path("results/training/benchmark.csv")
PARTS = (
    ("attention", r"forgetting|fmha|flash|attention|_attn|cudnn_generated"),
    ("recurrence", r"chunk|gla|delta_rule|fwd_h|bwd_dh|causal_conv|recompute_w|solve_tril|wy|cumsum"),
    ("matmuls", r"gemm|nvjet|cutlass|cublas|matmul|wgmma"),
    ("optimiser", r"multi_tensor|adam|FusedAdam|lpnorm|foreach"),
    ("communication", r"nccl"),
)
"""CUDA kernels by name; what matches none (norms, shifts, gates, casts, cross-entropy's elementwise work) is `other`."""


@dataclass(frozen=True)
class Arguments:
    """Time training steps. Start it with torchrun for several GPUs."""

    models: tyro.conf.Positional[tuple[str, ...]] = ("fox_pro",)
    """Models of the suite, e.g. fox_pro transformer_llama."""
    scale: str = "760m-48b"
    seq_len: int | None = None
    """Default: the scale's training length."""
    sequences: int = 1
    """Sequences per process and step."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    parallel: Literal["ddp", "fsdp"] = "ddp"
    compile: bool = False
    activation_checkpointing: bool = False
    gates: Literal["fresh", "open", "spread"] = "fresh"
    """Forget gates: as initialised (near 0.5), all near 1, or from very local to global over the heads (logits 0 to 9)."""
    prune: bool = False
    """Adaptive computation pruning at log tolerance -10."""
    warmup: int = 3
    steps: int = 10
    profile: bool = True
    """Also one step under the profiler, for the time by part."""
    out: Path = ROWS


def set_gates(model: nn.Module, gates: Literal["fresh", "open", "spread"]) -> None:
    """Forget-gate logits near 9, or spread over heads as linspace(0, 9) plus N(0, 1) noise per token."""
    if gates == "fresh":
        return
    for module in model.modules():
        gate = getattr(module, "fgate_proj", None)
        if isinstance(gate, nn.Linear):
            heads, hidden_size = gate.weight.shape
            nn.init.normal_(gate.weight, std=hidden_size**-0.5)
            with torch.no_grad():
                gate.bias.copy_(torch.linspace(0, 9, heads) if gates == "spread" else torch.full((heads,), 12.0))


def measure(name: str, arguments: Arguments, world: World) -> dict[str, object]:
    """One row: the median over `steps` steps after `warmup`, and the seconds to the end of the first."""
    started = time.perf_counter()
    scale = get_scale(arguments.scale)
    seq_len = arguments.seq_len or scale.seq_len
    spec: ModelSpec = model_spec(name, scale, 50257 if scale.name != "tiny" else 512)
    if arguments.prune:
        if not isinstance(spec, ForgettingTransformerSpec) or spec.forget_gate == "none":
            raise ValueError(f"--prune: {name} has no forget gate to prune by")
        spec = replace(spec, prune_log_tolerance=-10.0)
    batch = arguments.sequences * seq_len * world.size
    train = TrainSpec(
        seq_len=seq_len, batch_tokens=batch, train_tokens=batch * 1000, warmup_tokens=0, peak_lr=1e-5,
        precision="bf16" if world.device.type == "cuda" else "fp32",
    )  # fmt: skip
    torch.manual_seed(0)
    model = build_model(spec)
    set_gates(model, arguments.gates)
    if arguments.activation_checkpointing:
        model.gradient_checkpointing_enable()
    model.to(world.device).train()
    layers = list(model.base_model.layers)
    if arguments.compile:
        for layer in layers:
            layer.compile()
    token_loss = spread(TokenLoss(model), layers, world, arguments.parallel, "fp32")
    stepper = Stepper(token_loss, build_optimizer(token_loss, train), Guard(train, world), train, world, arguments.sequences)
    tokens = torch.randint(spec.vocab_size, (arguments.sequences, seq_len + 1), device=world.device)

    def step() -> None:
        stepper.run(tokens[:, :-1], tokens[:, 1:], 1e-5)

    built = time.perf_counter()
    step()
    _synchronise(world)
    first_step_s = time.perf_counter() - built
    for _ in range(arguments.warmup):
        step()
    _reset_peak(world)
    times = []
    for _ in range(arguments.steps):
        _synchronise(world)
        start = time.perf_counter()
        step()
        _synchronise(world)
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    peak = peak_flops(world.device)
    flops = 3 * flops_per_token(spec, seq_len)
    row: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "git_sha": (git_state()["git_sha"] or "")[:10],
        "gpu": device_label(world.device),
        "gpus": world.size,
        "torch": torch.__version__,
        "model": name,
        "scale": scale.name,
        "seq_len": seq_len,
        "sequences_per_gpu": arguments.sequences,
        "parallel": arguments.parallel if world.size > 1 else "",
        "compile": arguments.compile,
        "activation_checkpointing": arguments.activation_checkpointing,
        "gates": arguments.gates,
        "prune": arguments.prune,
        "tokens_per_s": round(batch / seconds),
        "step_ms": round(1e3 * seconds, 2),
        "step_ms_slowest": round(1e3 * max(times), 2),
        "mfu": "" if peak is None else round(batch / seconds * flops / (peak * world.size), 4),
        "tflops_per_gpu": round(batch / seconds * flops / world.size / 1e12, 1),
        "peak_memory_gib": _peak_gib(world),
        "build_s": round(built - started, 1),
        "first_step_s": round(first_step_s, 1),
    }
    parts = _time_by_part(step, world) if arguments.profile and world.device.type == "cuda" else {}
    for part in (*(part for part, _ in PARTS), "other", "idle"):
        row[f"{part}_ms"] = round(parts[part], 2) if part in parts else ""
    return row


def _time_by_part(step, world: World) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """Milliseconds of one step by what the CUDA kernels do; `idle` is time in which none ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        _synchronise(world)
    parts: dict[str, float] = defaultdict(float)
    names: dict[str, float] = defaultdict(float)
    intervals = []
    for event in profiler.events():
        if str(event.device_type) != "DeviceType.CUDA":
            continue
        part = next((part for part, pattern in PARTS if re.search(pattern, event.name, re.IGNORECASE)), "other")
        milliseconds = event.time_range.elapsed_us() / 1e3
        parts[part] += milliseconds
        names[f"{part}: {event.name[:100]}"] += milliseconds
        intervals.append((event.time_range.start, event.time_range.end))
    if os.environ.get("FOX_KERNEL_NAMES") and world.is_main:
        for name, milliseconds in sorted(names.items(), key=lambda item: -item[1])[:40]:
            print(f"{milliseconds:9.2f} ms  {name}", file=sys.stderr)
    busy, end = 0.0, 0.0
    for start, stop in sorted(intervals):
        busy += max(0.0, stop - max(start, end)) / 1e3
        end = max(end, stop)
    if intervals:
        parts["idle"] = (end - min(start for start, _ in intervals)) / 1e3 - busy
    return parts


def _synchronise(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def _reset_peak(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak_gib(world: World) -> float | str:
    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if world.device.type == "cuda" else ""


def append_row(path: Path, row: dict[str, object]) -> None:
    """Add a row to a CSV whose header is fixed by its first row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def main() -> int:
    arguments = tyro.cli(Arguments, prog="python -m training.benchmark", description=__doc__)
    try:
        for name in arguments.models:
            if name not in MODELS:
                raise ValueError(f"{name}: no such model; choose from {', '.join(MODELS)}")
        with join_world(arguments.device, timeout_minutes=10) as world:
            table = Table(
                "model", "gates", "pruned", "tokens/s", "MFU", "GiB", "step ms", "first step s", "by part (ms)", box=None
            )
            for name in arguments.models:
                prune = arguments.prune and name.startswith("fox")
                row = measure(name, dataclasses.replace(arguments, prune=prune), world)
                if world.is_main:
                    append_row(arguments.out, row)
                parts = ", ".join(
                    f"{k.removesuffix('_ms')} {row[k]}" for k in row if k.endswith("_ms") and k != "step_ms" and row[k] != ""
                )
                table.add_row(name, str(row["gates"]), str(prune), f"{row['tokens_per_s']:,}", str(row["mfu"]),
                              str(row["peak_memory_gib"]), str(row["step_ms"]), str(row["first_step_s"]), parts)  # fmt: skip
                if world.device.type == "cuda":
                    torch._dynamo.reset()
                    torch.cuda.empty_cache()
            if world.is_main:
                Console(soft_wrap=True).print(table)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
