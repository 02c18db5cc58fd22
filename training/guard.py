"""Steps that must not be applied: not finite, or a spike. Decided on the device, so that nothing waits for the host."""

import torch

from training.distributed import World

APPLIED, NOT_FINITE, SPIKE = 0, 1, 2
KINDS = {NOT_FINITE: "not finite", SPIKE: "spike"}
WARM_STEPS = 100
"""Steps over which the running mean of the gradient norm is formed before a spike can be told from the start."""


class Guard:
    """Judge of each step by its loss and gradient norm, with a running mean of the norms of applied steps.

    `spike_factor`: a gradient norm above this multiple of the mean is a spike; None takes none for one.
    """

    def __init__(self, spike_factor: float | None, world: World):
        self._factor = spike_factor
        self.mean_norm = torch.zeros((), device=world.device)
        self.steps_seen = torch.zeros((), device=world.device)

    def state(self) -> dict[str, torch.Tensor]:
        return {"guard.mean_norm": self.mean_norm, "guard.steps_seen": self.steps_seen}

    def judge(self, loss: torch.Tensor, grad_norm: torch.Tensor) -> torch.Tensor:
        """Return APPLIED, NOT_FINITE or SPIKE as a float tensor; updates the running mean. No host synchronisation."""
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
