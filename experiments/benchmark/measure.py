"""One measurement: a model, real training steps on random tokens, a row."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import tyro
from torch import nn

from experiments.benchmark.parts import time_by_part
from experiments.recipes import model_spec
from experiments.scales import get_scale
from kernels.fla_cpu.tuning import lift_limit
from models.build import build_model
from models.loss import TokenLoss
from models.spec import ForgettingTransformerSpec, ModelSpec
from results.measured import FOLDER, PARTS
from training.distributed import World, layers_of, spread
from training.guard import Guard
from training.hardware import peak_flops
from training.optimizer import build_optimizer
from training.spec import TrainSpec
from training.step import Stepper


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
    compile: bool = False
    limit_tuning: bool = False
    """Tune fla's kernels over a few candidates, as `run` does, instead of all: minutes less at the first step."""
    activation_checkpointing: bool = False
    gates: Literal["fresh", "open", "spread"] = "fresh"
    """Forget gates: as initialised (near 0.5), all near 1, or from very local to global over the heads (logits 0 to 9)."""
    prune: bool = False
    """Adaptive computation pruning at log tolerance -10."""
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
    spec = _spec(name, arguments)
    seq_len = arguments.seq_len or get_scale(arguments.scale).seq_len
    step = _build_step(spec, seq_len, arguments, world)
    build_s = time.perf_counter() - started
    first_step_s, *times = _time_steps(step, arguments, world)
    seconds = statistics.median(times)
    tokens_per_s = arguments.sequences * arguments.micro_batches * seq_len * world.size / seconds
    flops_per_gpu = tokens_per_s * 3 * spec.flops_per_token(seq_len) / world.size
    peak = peak_flops(world.device)
    row: dict[str, object] = {
        "model": f"{name}, tightly pruned" if arguments.tight else name,
        "scale": arguments.scale,
        "gpus": world.size,
        "seq_len": seq_len,
        "sequences_per_gpu": arguments.sequences,
        "micro_batches": arguments.micro_batches,
        "parallel": arguments.parallel if world.size > 1 else "",
        "compile": arguments.compile,
        "activation_checkpointing": arguments.activation_checkpointing,
        "gates": arguments.gates,
        "prune": arguments.prune,
        "tokens_per_s": round(tokens_per_s),
        "step_ms": round(1e3 * seconds, 2),
        "step_ms_slowest": round(1e3 * max(times), 2),
        "mfu": math.nan if peak is None else round(flops_per_gpu / peak, 4),
        "tflops_per_gpu": round(flops_per_gpu / 1e12, 1),
        "peak_memory_gib": _peak_gib(world),
        "build_s": round(build_s, 1),
        "first_step_s": round(first_step_s, 1),
    }
    parts = time_by_part(step, world, arguments.kernels) if arguments.profile and world.device.type == "cuda" else {}
    for part in PARTS:
        row[f"{part}_ms"] = round(parts[part], 2) if part in parts else math.nan
    return row


def _spec(name: str, arguments: Arguments) -> ModelSpec:
    scale = get_scale(arguments.scale)
    spec = model_spec(name, scale, 50257 if scale.name != "tiny" else 512)
    if not arguments.prune:
        return spec
    if not isinstance(spec, ForgettingTransformerSpec) or spec.forget_gate == "none":
        raise ValueError(f"--prune: {name} has no forget gate to prune by")
    return replace(spec, prune_log_tolerance=-10.0, prune_tightly=arguments.tight)


def _build_step(spec: ModelSpec, seq_len: int, arguments: Arguments, world: World) -> Callable[[], None]:
    """A training step as the loop runs it, on the same random tokens each time."""
    share = arguments.sequences * arguments.micro_batches
    batch = share * seq_len * world.size
    train = TrainSpec(
        seq_len=seq_len,
        batch_tokens=batch,
        train_tokens=batch * 1000,
        warmup_tokens=0,
        peak_lr=1e-5,
        precision="bf16" if world.device.type == "cuda" else "fp32",
    )
    torch.manual_seed(0)
    model: nn.Module = build_model(spec)
    if not arguments.limit_tuning:
        lift_limit()
    set_gates(model, arguments.gates)
    if arguments.activation_checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    model.to(world.device).train()
    layers = layers_of(model)
    if arguments.compile:
        for layer in layers:
            layer.compile()
    token_loss = spread(TokenLoss(model), layers, world, arguments.parallel, "fp32")
    stepper = Stepper(token_loss, build_optimizer(token_loss, train), Guard(None, world), train, world, arguments.sequences)
    tokens = torch.randint(spec.vocab_size, (share, seq_len + 1), device=world.device)

    def step() -> None:
        stepper.run(tokens[:, :-1], tokens[:, 1:], train.peak_lr)

    return step


def _time_steps(step: Callable[[], None], arguments: Arguments, world: World) -> list[float]:
    """Seconds of the first step, then of `steps` steps after `warmup` more."""

    def timed() -> float:
        _synchronise(world)
        start = time.perf_counter()
        step()
        _synchronise(world)
        return time.perf_counter() - start

    first = timed()
    for _ in range(arguments.warmup):
        step()
    _reset_peak(world)
    return [first, *(timed() for _ in range(arguments.steps))]


def _synchronise(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def _reset_peak(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak_gib(world: World) -> float:
    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if world.device.type == "cuda" else math.nan
