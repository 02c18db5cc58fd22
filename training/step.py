"""One optimisation step: gradient accumulation, clipping, the check for bad steps, the update; and the set-up around it."""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from data.prefetch import Prefetcher
from models.causal_lm import CausalLM
from models.graphed import capture
from models.loss import TokenLoss
from training.distributed import DTYPES, World, gradient_sync, spread
from training.hardware import repeat_bits
from training.node import check_gpus
from training.optimizer import allocate_state, build_optimizer
from training.spec import GRAPH_PARTS, Execution, TrainSpec, micro_batch_size
from training.tree import in_tree, tree_sum

Batch = tuple[Tensor, Tensor]
APPLIED, NOT_FINITE, SPIKE = 0, 1, 2
KINDS = {NOT_FINITE: "not finite", SPIKE: "spike"}
WARM_STEPS = 100
"""Applied steps that the running mean of the gradient norm needs before spikes are detected; then its time constant."""
MEASUREMENTS = 64
"""Approximate number of times that a training measures what its model's spec names."""
EAGER_STEPS = 3
"""Steps before the CUDA graph is captured: they compile and tune its kernels."""


class Guard:
    """Decides whether each step is applied: a step with a non-finite loss or gradient norm, or with a gradient spike, is
    skipped. Decides on the device, so that nothing waits for the host.

    `spike_factor`: a gradient norm above this multiple of the running mean, over applied steps, counts as a spike; None
    disables the check."""

    def __init__(self, spike_factor: float | None, world: World):
        self._factor = spike_factor
        self.mean_norm, self.steps_seen = (torch.zeros((), device=world.device) for _ in range(2))

    def state(self) -> dict[str, Tensor]:
        return {"guard.mean_norm": self.mean_norm, "guard.steps_seen": self.steps_seen}

    def judge(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Return APPLIED, NOT_FINITE or SPIKE as a float tensor; updates the running mean."""
        finite = torch.isfinite(loss) & torch.isfinite(grad_norm)
        spike = torch.zeros_like(finite)
        if self._factor is not None:
            spike = finite & (self.steps_seen >= WARM_STEPS) & (grad_norm > self._factor * self.mean_norm)
        applied = finite & ~spike
        self.steps_seen += applied
        weight = 1 / self.steps_seen.clamp(1, WARM_STEPS)
        updated = self.mean_norm + weight * (torch.nan_to_num(grad_norm) - self.mean_norm)
        self.mean_norm.copy_(torch.where(applied, updated, self.mean_norm))
        return torch.where(finite, torch.where(spike, float(SPIKE), float(APPLIED)), float(NOT_FINITE))


@dataclass
class Stepper:
    """Runs steps. `token_loss(inputs, targets)` returns per-token losses (batch, seq_len). Negative targets are masked, and
    every process must have equally many others. `ordered`: gradients are added in the order of training/tree.py. `graph`: after
    the first steps, forward pass, backward pass, clipping and check are one CUDA graph (one process, batches of one shape)."""

    token_loss: nn.Module
    optimizer: torch.optim.AdamW
    guard: Guard
    spec: TrainSpec
    world: World
    micro_batch: int
    ordered: bool = True
    graph: bool = False

    def __post_init__(self) -> None:
        self._parameters = [p for p in self.token_loss.parameters() if p.requires_grad]
        self._replay: Callable[[Tensor, Tensor], list[Tensor]] | None = None
        self._taken = 0

    def run(self, inputs_BT: Tensor, targets_BT: Tensor, lr: float) -> Tensor:
        """Run a step on this process's rows. Return (3,) on the device: loss over processes, gradient norm, Guard's verdict."""
        self._taken += 1
        if self.graph and self._replay is None and self._taken > EAGER_STEPS:
            self._capture(inputs_BT, targets_BT)
        outcome, bad = (self._replay or self._gradients)(inputs_BT, targets_BT)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        # AdamW's hook for gradient scalers: with found_inf set, the fused kernel leaves weights, moments and steps alone. It is
        # not part of the graph, where it would read the learning rate in single precision.
        self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.step()
        if self._replay is None:  # a graph writes its gradients anew
            self.optimizer.zero_grad(set_to_none=True)
        return outcome

    def _gradients(self, inputs_BT: Tensor, targets_BT: Tensor) -> list[Tensor]:
        """Leave clipped gradients in the parameters. Return the outcome (3,), and 1 if the step must not be applied."""
        loss = self._backward(inputs_BT, targets_BT)
        loss = tree_sum(self.world.gather(loss)) / self.world.size
        grad_norm = nn.utils.clip_grad_norm_(self._parameters, self.spec.grad_clip, foreach=True)
        if isinstance(grad_norm, DTensor):
            grad_norm = grad_norm.full_tensor()
        verdict = self.guard.judge(loss, grad_norm)
        return [torch.stack([loss, grad_norm, verdict]), (verdict != 0).float()]

    def _capture(self, inputs_BT: Tensor, targets_BT: Tensor) -> None:
        """Capture `_gradients`; if the model waits for the GPU, say so and stay with eager steps."""
        inputs, targets = inputs_BT.clone(), targets_BT.clone()
        try:
            graph, output = capture(lambda: self._gradients(inputs, targets))
        except RuntimeError as error:
            print(f"this model's step is not captured as a CUDA graph: {str(error).splitlines()[0]}", file=sys.stderr)
            self.optimizer.zero_grad(set_to_none=True)
            self.graph = False
            return

        def replay(inputs_BT: Tensor, targets_BT: Tensor) -> list[Tensor]:
            inputs.copy_(inputs_BT)
            targets.copy_(targets_BT)
            graph.replay()
            return [output[0].clone(), output[1]]

        self._replay = replay

    def autocast(self) -> torch.autocast:
        precision = self.spec.precision
        # Without its cache of weights, as in a graph: compiled layers would be compiled again for it.
        enabled = precision != "fp32"
        return torch.autocast(self.world.device.type, dtype=DTYPES[precision], enabled=enabled, cache_enabled=False)

    def _backward(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        totals = []
        counted = (targets_BT >= 0).sum()
        parts = list(zip(inputs_BT.split(self.micro_batch), targets_BT.split(self.micro_batch), strict=True))
        for index in in_tree(self._parameters, len(parts)) if self.ordered else range(len(parts)):
            inputs, targets = parts[index]
            with gradient_sync(self.token_loss, enabled=index == len(parts) - 1):
                with self.autocast():
                    losses = self.token_loss(inputs, targets.clamp(min=0))
                loss = losses.where(targets >= 0, 0.0).sum() / counted
                loss.backward()
            totals.append(loss.detach())
        return tree_sum(totals)


def build_stepper(model: nn.Module, spec: TrainSpec, execution: Execution, world: World) -> Stepper:
    """Set `model` up for training (also for Table 6's throughput): move it to its device, compile and distribute it, build
    its optimiser. Raises ValueError if the micro-batches do not divide the step."""
    micro_batch = micro_batch_size(spec, world.size, execution.micro_batch_tokens)
    if execution.deterministic:
        repeat_bits(execution.compiles)
    check_gpus(world)  # starts cuBLAS, so after repeat_bits; before the model takes memory
    if execution.activation_checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    model.to(world.device).train()
    token_loss = TokenLoss(model)
    layers: list[nn.Module] = []  # residual blocks, the units of sharding and of compilation
    if execution.compiles or world.size > 1:  # other people's models may name them differently
        layers = list(model.base_model.get_submodule("layers").children())  # type: ignore[union-attr]
    if execution.compiles:
        for layer in layers:
            layer.compile()
    ordered = execution.deterministic and (world.size == 1 or execution.parallel == "ddp")
    wrapped = spread(token_loss, layers, world, execution.parallel, spec.grad_reduce, in_pairs=ordered)
    optimizer = build_optimizer(token_loss, spec)
    allocate_state(optimizer)
    parts = spec.batch_size // world.size // micro_batch
    graph = execution.cuda_graph and world.device.type == "cuda" and world.size == 1 and parts <= GRAPH_PARTS
    graph = graph and not execution.activation_checkpointing
    if execution.cuda_graph and not graph and world.device.type == "cuda":
        rule = f"one process, at most {GRAPH_PARTS} micro-batches and no activation checkpointing"
        print(f"steps are not captured as a CUDA graph, which takes {rule}", file=sys.stderr)
    return Stepper(wrapped, optimizer, Guard(execution.spike_factor, world), spec, world, micro_batch, ordered, graph)


class Meter:
    """Measures what the model's spec names in `measured` on the first sequence of a step, averaged over layers.

    This costs a forward pass of that sequence; nothing if `measured` is empty."""

    def __init__(self, model: CausalLM, stepper: Stepper, compiled: bool):
        self.names = model.config.to_spec().measured
        self._backbone, self._stepper, self._compiled = model.model, stepper, compiled
        self._every = max(1, stepper.spec.num_steps // MEASUREMENTS)

    def values(self, step: int, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return a value per name, on the device, NaN between measurements. Every process must call it (sharded weights)."""
        if not self.names or step % self._every:
            return torch.full((len(self.names),), torch.nan, device=inputs_BT.device)
        # Compiled layers ignore hooks.
        eager = torch.compiler.set_stance("force_eager") if self._compiled else nullcontext()  # type: ignore[attr-defined]
        with torch.no_grad(), self._stepper.autocast(), self._backbone.measuring() as found, eager:
            self._stepper.token_loss(inputs_BT[:1], targets_BT[:1])
        return torch.stack([torch.stack(found[name]).mean() for name in self.names])


@contextmanager
def batches_on(
    device: torch.device, load: Callable[[int], Batch], steps: Iterable[int]
) -> Iterator[Iterator[tuple[int, Tensor, Tensor]]]:
    """Yield (step, inputs, targets) on the device for each of `steps`, prefetched by a thread that ends with this context."""

    def read(step: int) -> Batch:
        inputs, targets = load(step)
        return (inputs.pin_memory(), targets.pin_memory()) if device.type == "cuda" else (inputs, targets)

    with Prefetcher(((step, read(step)) for step in steps), depth=3) as batches:
        send = partial(Tensor.to, device=device, non_blocking=True)
        yield ((step, send(inputs), send(targets)) for step, (inputs, targets) in batches)


@contextmanager
def repeated_step(
    model: nn.Module, ids_BT: Tensor, spec: TrainSpec, execution: Execution, world: World
) -> Iterator[Callable[[], None]]:
    """Yield a function that trains one step on the same ids (on the host) at each call, for timings. The learning rate is 0,
    so that the optimiser does all its work and changes nothing."""
    stepper, batch = build_stepper(model, spec, execution, world), (ids_BT, ids_BT.roll(-1, 1))
    with batches_on(world.device, lambda step: batch, itertools.count()) as batches:

        def step() -> None:
            _, inputs, targets = next(batches)
            stepper.run(inputs, targets, lr=0.0)

        yield step
