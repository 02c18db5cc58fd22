"""The mean of a training's last weights, kept beside them and exported in their place: an option of its spec."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from training.spec import TrainSpec


class WeightMean:
    """The parameters' mean over the last `spec.averaged_steps` steps; of shards each process averages its own. Nothing where
    the spec does not ask for it."""

    def __init__(self, model: nn.Module, spec: TrainSpec):
        self._first = spec.num_steps - spec.averaged_steps + 1
        wanted = model.named_parameters() if spec.averaged_share else ()
        self._weights = {name: weight.detach() for name, weight in wanted}
        self._means = {name: weight.clone() for name, weight in self._weights.items()}

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold of it, besides the step."""
        return {f"mean.{name}": mean for name, mean in self._means.items()}

    def add(self, step: int) -> None:
        """The weights as they are after `step` (from 1)."""
        if self._means and step >= self._first:
            # The first of them takes the place of what was there.
            torch._foreach_lerp_(_local(self._means), _local(self._weights), 1.0 / (step - self._first + 1))

    def put_into_model(self) -> None:
        """After the last step: the weights are their mean from now on."""
        for name, mean in self._means.items():
            self._weights[name].copy_(mean)


def _local(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors.values()]
