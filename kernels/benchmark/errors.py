"""Errors of outputs and gradients against float64, relative to the norm of each, by provider and regime.

A regime is the scale of q (q and k are normal, so this is the logits' standard deviation) and the mean of the gates' logits,
from very local (almost nothing is kept) through near 0.5, where training starts, to open. Errors are root mean squares over
DRAWS of the inputs: in a single draw the error of open gates' gradient is up to a third off."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kernels.benchmark.operators import DTYPE, providers
from kernels.benchmark.times import Row
from kernels.fla_cpu.tuning import limit_tuning
from kernels.forgetting_attention import reference_attention
from results.measured import GRADIENTS

GATES = {"very local": -15.0, "local": -6.0, "near 0.5": 0.0, "medium": 3.5, "global": 8.0, "open": 30.0}
LOGITS = (1.0, 3.0, 10.0, 100.0)
SHAPE = (2, 1000, 16)
DRAWS = 4


@dataclass(frozen=True)
class Regime:
    """Inputs (q, k, v, log_fgate, with gradient), dO, and [o, dq, dk, dv, dlog_fgate] in float64."""

    inputs: list[Tensor]
    do: Tensor
    exact: list[Tensor]


def make_regime(logit: float, gates: str, head_dim: int, seed: int = 0, device: str = "cuda") -> Regime:
    """Draw a regime's inputs, and compute its exact values by the readable reference."""
    generator = torch.Generator(device).manual_seed(seed)
    q, k, v, do = (torch.randn(*SHAPE, head_dim, device=device, generator=generator).to(DTYPE) for _ in range(4))
    z = torch.randn(SHAPE, device=device, generator=generator)
    inputs = [x.requires_grad_() for x in (logit * q, k, v, logsigmoid(z + GATES[gates]))]
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    o = reference_attention(*exact_inputs)
    return Regime(inputs, do, [o, *torch.autograd.grad(o, exact_inputs, do.double())])


def relative_errors(attention: Callable[..., Tensor], regime: Regime) -> list[float]:
    """Compute the errors of o, dq, dk, dv and dlog_fgate; inf for a result that is not finite."""
    o = attention(*regime.inputs)
    found = [o, *torch.autograd.grad(o, regime.inputs, regime.do)]
    errors = [((x.double() - y).norm() / y.norm()).item() for x, y in zip(found, regime.exact, strict=True)]
    return [math.inf if math.isnan(error) else error for error in errors]


def measure_errors(only: tuple[str, ...], head_dims: tuple[int, ...] = (64, 128), device: str = "cuda") -> Iterator[Row]:
    """Yield one row per provider (those in `only`, or all) and regime."""
    gated = {name: f for name, f in providers().items() if not name.startswith("softmax") and not name.endswith("pruned")}
    found = {name: f for name, f in gated.items() if not only or name in only}
    limit_tuning()  # errors hardly depend on tile sizes: a short search suffices
    for head_dim, logit, gates in itertools.product(head_dims, LOGITS, GATES):
        squares = {name: [0.0] * len(GRADIENTS) for name in found}
        for seed in range(DRAWS):
            regime = make_regime(logit, gates, head_dim, seed, device)
            for name, attention in found.items():
                errors = relative_errors(attention, regime)
                squares[name] = [total + error**2 / DRAWS for total, error in zip(squares[name], errors, strict=True)]
        for name, means in squares.items():
            about = {"provider": name, "head_dim": head_dim, "logit": logit, "gates": gates}
            yield {**about, **{output: float(f"{math.sqrt(mean):.2e}") for output, mean in zip(GRADIENTS, means, strict=True)}}
