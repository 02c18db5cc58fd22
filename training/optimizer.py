"""AdamW as the paper used it: which parameters decay, and the optimiser's state as named tensors."""

import torch
from torch import nn

from training.spec import TrainSpec


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Tell whether a parameter decays: linear, convolution, embedding and head weights do; biases, norms and flagged
    parameters do not.

    `parameter._no_weight_decay` is set by the models (Mamba-2's A_log, D, dt_bias; HGRN2's lower bounds; constant gates).
    """
    return parameter.ndim >= 2 and not name.endswith("bias") and not getattr(parameter, "_no_weight_decay", False)


def build_optimizer(model: nn.Module, spec: TrainSpec) -> torch.optim.AdamW:
    """Return fused AdamW in two groups (decayed, not decayed); the learning rate is set before each step."""
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in trainable if decays(n, p)], "weight_decay": spec.weight_decay},
        {"params": [p for n, p in trainable if not decays(n, p)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]],
        lr=0.0,
        betas=(spec.beta1, spec.beta2),
        eps=spec.adam_eps,
        fused=True,
    )


def allocate_state(optimizer: torch.optim.AdamW) -> None:
    """Create the moments before the first step, so that a checkpoint can be loaded into them."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in optimizer.state:
                optimizer.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }


def named_state(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """Return the optimiser's tensors by parameter name: `exp_avg.NAME`, `exp_avg_sq.NAME`, `steps.NAME`."""
    state = {}
    for name, parameter in model.named_parameters():
        entry = optimizer.state.get(parameter)
        if entry is not None:
            state[f"exp_avg.{name}"] = entry["exp_avg"]
            state[f"exp_avg_sq.{name}"] = entry["exp_avg_sq"]
            state[f"steps.{name}"] = entry["step"]
    return state
