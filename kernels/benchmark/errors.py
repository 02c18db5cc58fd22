"""Errors of outputs and gradients against float64, relative to the norm of each, by provider and regime.

A regime is the scale of q (q and k are normal, so this is the logits' standard deviation) and the mean of the gates' logits,
from very local (almost nothing is kept) through near 0.5, where training starts, to open. Errors are root mean squares over
DRAWS of the inputs: in a single draw the error of open gates' gradient is up to a third off."""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kernels.benchmark.attention import outputs, providers
from kernels.benchmark.timing import DTYPE, Attention, Row
from kernels.fla_cpu.tuning import limit_tuning
from kernels.forgetting_attention import reference_attention
from results.measured import GRADIENTS

GATES = {"very local": -15.0, "local": -6.0, "near 0.5": 0.0, "medium": 3.5, "global": 8.0, "open": 30.0}
LOGITS = (1.0, 3.0, 10.0, 100.0)
SHAPE = (2, 1000, 16)
DRAWS = 4


class Regime(NamedTuple):
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
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    return Regime(inputs, do, outputs(reference_attention, doubles, 4, do.double()))


def relative_errors(attention: Attention, regime: Regime) -> list[float]:
    """Compute the errors of o, dq, dk, dv and dlog_fgate; inf for a result that is not finite."""
    pairs = zip(outputs(attention, regime.inputs, 4, regime.do), regime.exact, strict=True)
    errors = [((x.double() - y).norm() / y.norm()).item() for x, y in pairs]
    return [math.inf if math.isnan(error) else error for error in errors]


def measure_errors(only: tuple[str, ...], head_dims: tuple[int, ...] = (64, 128), device: str = "cuda") -> Iterator[Row]:
    """Yield one row per provider (those in `only`, or all) and regime."""
    limit_tuning()  # errors hardly depend on tile sizes: a short search suffices
    for name, attention in providers().items():
        if name.startswith("softmax") or name.endswith("pruned") or (only and name not in only):
            continue
        for head_dim, logit, gates in itertools.product(head_dims, LOGITS, GATES):
            regimes = (make_regime(logit, gates, head_dim, seed, device) for seed in range(DRAWS))
            squares = [[error**2 / DRAWS for error in relative_errors(attention, regime)] for regime in regimes]
            errors = [float(f"{math.sqrt(sum(each)):.2e}") for each in zip(*squares, strict=True)]
            about = {"provider": name, "head_dim": head_dim, "logit": logit, "gates": gates}
            yield about | dict(zip(GRADIENTS, errors, strict=True))
