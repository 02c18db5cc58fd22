"""One optimisation step: accumulate gradients over micro-batches, clip, judge, apply."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from training.distributed import DTYPES, World, gradient_sync
from training.guard import Guard
from training.spec import TrainSpec


@dataclass
class Stepper:
    """Holds what a step needs and runs it. `token_loss(inputs, targets)` returns per-token losses (batch, seq_len);
    negative targets carry none, and every process has as many of the others."""

    token_loss: nn.Module
    optimizer: torch.optim.Optimizer
    guard: Guard
    spec: TrainSpec
    world: World
    micro_batch: int

    def __post_init__(self) -> None:
        self._parameters = [p for p in self.token_loss.parameters() if p.requires_grad]

    def run(
        self, inputs_BT: torch.Tensor, targets_BT: torch.Tensor, lr: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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
        """The precision of a forward pass."""
        precision = self.spec.precision
        return torch.autocast(self.world.device.type, dtype=DTYPES[precision], enabled=precision != "fp32")

    def _backward(self, inputs_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
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
