"""Optimisation as in the paper: the learning rate, AdamW, weight decay, and the optimiser's state as named tensors."""

import math

import torch
from torch import nn

from training.spec import TrainSpec


def learning_rate(tokens_seen: int, spec: TrainSpec) -> float:
    """Return the learning rate of the step after `tokens_seen` tokens: linear from 0 over the warm-up, then cosine to 0
    (section 4, Appendix B). So the first step runs at exactly 0 and the last one slightly above 0."""
    if tokens_seen < spec.warmup_tokens:
        return spec.peak_lr * tokens_seen / spec.warmup_tokens
    progress = (tokens_seen - spec.warmup_tokens) / (spec.train_tokens - spec.warmup_tokens)
    return spec.peak_lr * 0.5 * (1 + math.cos(math.pi * progress))


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Tell whether weight decay applies: to linear, convolution, embedding and head weights; not to biases, norms, decay rates
    and lower bounds. Goes by name, as a parameter that is loaded or copied has lost fla's flag `_no_weight_decay`."""
    return parameter.ndim >= 2 and not name.endswith(("bias", "A_log", "lower_bounds"))


def build_optimizer(model: nn.Module, spec: TrainSpec) -> torch.optim.AdamW:
    """Return fused AdamW in two groups (decayed, not decayed); the learning rate is set before each step."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[decays(name, parameter)].append(parameter)
    settings = [{"params": group, "weight_decay": spec.weight_decay * decayed} for decayed, group in groups.items() if group]
    return torch.optim.AdamW(settings, lr=0.0, betas=(spec.beta1, spec.beta2), eps=spec.adam_eps, fused=True)


def allocate_state(optimizer: torch.optim.AdamW) -> None:
    """Create the moments before the first step, so that a checkpoint can be loaded into them."""
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **moments}


def named_state(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """Return the optimiser's tensors by parameter name: `exp_avg.NAME`, `exp_avg_sq.NAME`, `steps.NAME`."""
    found = [(name, optimizer.state.get(parameter, {})) for name, parameter in model.named_parameters()]
    kinds = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "steps": "step"}
    return {f"{kind}.{name}": entry[key] for name, entry in found for kind, key in kinds.items() if entry}
