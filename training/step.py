"""One optimisation step: accumulate gradients over micro-batches, clip, judge, apply. And what trainings build round it."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from data.prefetch import Prefetcher
from models.loss import TokenLoss
from training.distributed import DTYPES, World, gradient_sync, layers_of, spread
from training.guard import Guard
from training.optimizer import allocate_state, build_optimizer
from training.spec import Execution, TrainSpec, micro_batch_size

Batch = tuple[Tensor, Tensor]


@dataclass
class Stepper:
    """Holds what a step needs and runs it. `token_loss(inputs, targets)` returns per-token losses (batch, seq_len);
    negative targets carry none, and every process has as many of the others."""

    token_loss: nn.Module
    optimizer: torch.optim.AdamW
    guard: Guard
    spec: TrainSpec
    world: World
    micro_batch: int

    def __post_init__(self) -> None:
        self._parameters = [p for p in self.token_loss.parameters() if p.requires_grad]

    def run(self, inputs_BT: Tensor, targets_BT: Tensor, lr: float) -> tuple[Tensor, Tensor, Tensor]:
        """One step on this process's rows. Returns (loss over all processes, gradient norm, Guard's verdict) on the device."""
        loss = self._backward(inputs_BT, targets_BT)
        loss = self.world.sum(loss) / self.world.size
        grad_norm = nn.utils.clip_grad_norm_(self._parameters, self.spec.grad_clip, foreach=True)
        if isinstance(grad_norm, DTensor):
            grad_norm = grad_norm.full_tensor()
        verdict = self.guard.judge(loss, grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        # AdamW's hook for gradient scalers: with found_inf set, the fused kernel leaves weights, moments and steps alone.
        self.optimizer.found_inf = (verdict != 0).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, grad_norm, verdict

    def autocast(self) -> torch.autocast:
        """Return the precision of a forward pass."""
        precision = self.spec.precision
        return torch.autocast(self.world.device.type, dtype=DTYPES[precision], enabled=precision != "fp32")

    def _backward(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        total = torch.zeros((), device=self.world.device)
        counted = (targets_BT >= 0).sum()
        parts = list(zip(inputs_BT.split(self.micro_batch), targets_BT.split(self.micro_batch), strict=True))
        for index, (inputs, targets) in enumerate(parts):
            with gradient_sync(self.token_loss, enabled=index == len(parts) - 1):
                with self.autocast():
                    losses = self.token_loss(inputs, targets.clamp(min=0))
                loss = losses.where(targets >= 0, 0.0).sum() / counted
                loss.backward()
            total += loss.detach()
        return total


def build_stepper(model: nn.Module, spec: TrainSpec, execution: Execution, world: World) -> Stepper:
    """Return the step of a training of `model`: moved to its device, compiled, spread and optimised as the run has it.

    Trainings and the throughput of Table 6 take it from here. Raises ValueError where the
    micro-batches do not divide the step.
    """
    micro_batch = micro_batch_size(spec, world.size, execution.micro_batch_tokens)
    if execution.activation_checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    model.to(world.device).train()
    token_loss = TokenLoss(model)
    # Blocks of a model of others may have another name, and alone and uncompiled nobody asks for them.
    layers = layers_of(model) if execution.compile or world.size > 1 else []
    if execution.compile:
        for layer in layers:
            layer.compile()
    wrapped = spread(token_loss, layers, world, execution.parallel, spec.grad_reduce)
    optimizer = build_optimizer(token_loss, spec)
    allocate_state(optimizer)
    return Stepper(wrapped, optimizer, Guard(execution.spike_factor, world), spec, world, micro_batch)


@contextmanager
def batches_on(
    device: torch.device, load: Callable[[int], Batch], steps: Iterable[int]
) -> Iterator[Iterator[tuple[int, Tensor, Tensor]]]:
    """Yield (step, inputs, targets) on the device for each of `steps`, read ahead by a thread that ends with this context."""

    def read(step: int) -> Batch:
        inputs, targets = load(step)
        return (inputs.pin_memory(), targets.pin_memory()) if device.type == "cuda" else (inputs, targets)

    def moved() -> Iterator[tuple[int, Tensor, Tensor]]:
        for step, (inputs, targets) in batches:
            yield step, inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    with Prefetcher(((step, read(step)) for step in steps), depth=3) as batches:
        yield moved()


@contextmanager
def repeated_step(
    model: nn.Module, ids_BT: Tensor, spec: TrainSpec, execution: Execution, world: World
) -> Iterator[Callable[[], None]]:
    """Yield a training's step on the same ids (on the host) each time it is called, for timings. The learning rate is 0, so
    that the optimiser does all its work and changes nothing."""
    stepper, batch = build_stepper(model, spec, execution, world), (ids_BT, ids_BT.roll(-1, 1))
    with batches_on(world.device, lambda step: batch, itertools.count()) as batches:

        def step() -> None:
            _, inputs, targets = next(batches)
            stepper.run(inputs, targets, lr=0.0)

        yield step
