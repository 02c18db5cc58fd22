"""Measurements that a model asks for while it trains: from time to time, beside the steps."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from models.causal_lm import CausalLM
from training.step import Stepper

TIMES = 64
"""Number of measurements in a training."""


class Meter:
    """Measure what the model's spec names (`measured`) on the first sequence of a step, a mean over layers.

    Costs a forward pass of that sequence, and nothing for models that name nothing.
    """

    def __init__(self, model: CausalLM, stepper: Stepper, compiled: bool):
        self.names = model.config.to_spec().measured
        self._backbone, self._stepper, self._compiled = model.model, stepper, compiled
        self._every = max(1, stepper.spec.num_steps // TIMES)

    def values(self, step: int, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return one value per name, on the device; NaN between the measurements. Every process must ask, as sharded weights
        are gathered."""
        if not self.names or step % self._every:
            return torch.full((len(self.names),), torch.nan, device=inputs_BT.device)
        eager: AbstractContextManager[object] = nullcontext()
        if self._compiled:  # a compiled layer does not look at hooks
            eager = torch.compiler.set_stance("force_eager")  # type: ignore[attr-defined]
        with torch.no_grad(), self._stepper.autocast(), self._backbone.measuring() as found, eager:
            self._stepper.token_loss(inputs_BT[:1], targets_BT[:1])
        return torch.stack([torch.stack(found[name]).mean() for name in self.names])
