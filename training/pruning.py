"""What adaptive computation pruning skips while a FoX trains: measured from time to time, beside the steps."""

import torch
from torch import Tensor, nn

from kernels.forgetting_attention.pruning.threshold import share_of_tiles
from kernels.forgetting_attention.visibility import TILE
from models.forgetting_transformer.module import ForgettingAttention, gated_layers, watched
from training.spec import RunSpec

TIMES = 64
"""How often in a training."""
TILES = 16
"""A sequence has at least so many tiles: smaller ones than the kernels' 128 in short training contexts."""


class PruningMeter:
    """The share of the causal tiles that is skipped on the first sequence of a step, a mean over layers and heads.

    Costs a forward pass of that sequence, and nothing for models that do not prune.
    """

    def __init__(self, token_loss: nn.Module, spec: RunSpec, compiled: bool):
        self.log_tolerance: float | None = getattr(spec.model, "prune_log_tolerance", None)
        self.layers = {} if self.log_tolerance is None else gated_layers(token_loss)
        self.token_loss, self.compiled = token_loss, compiled
        self.every = max(1, spec.train.num_steps // TIMES)
        self.tile = max(1, min(TILE, spec.train.seq_len // TILES))

    def share(self, step: int, inputs_BT: Tensor, targets_BT: Tensor, autocast: torch.autocast) -> Tensor:
        """() on the device; NaN between the measurements. Every process must ask, as sharded weights are gathered."""
        if not self.layers or step % self.every:
            return torch.full((), torch.nan, device=inputs_BT.device)
        shares: list[Tensor] = []

        def visit(layer: ForgettingAttention, q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor) -> None:
            assert self.log_tolerance is not None
            count_BHM = layer.pruned_tiles(q, k, log_fgate, self.log_tolerance, self.tile)
            shares.append(share_of_tiles(count_BHM, q.shape[1], k.shape[1], self.tile).mean())

        with torch.no_grad(), autocast, watched(self.layers, visit):
            if self.compiled:  # a compiled layer does not look at hooks
                with torch.compiler.set_stance("force_eager"):
                    self.token_loss(inputs_BT[:1], targets_BT[:1])
            else:
                self.token_loss(inputs_BT[:1], targets_BT[:1])
        return torch.stack(shares).mean()
