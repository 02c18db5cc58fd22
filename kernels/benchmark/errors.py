"""How exact each provider is, regime by regime: error of outputs and gradients against float64, relative to the norm of each.

A regime is the size of q (q and k are normal, so with D = 64 logits have that standard deviation) and where the gates are:
the mean of their logits, from very local (almost nothing is kept) over near 0.5, where training starts, to open.
"""

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton
from torch import Tensor
from torch.nn.functional import logsigmoid

from kernels.benchmark.measure import BASELINE, DTYPE, providers
from kernels.fla_cpu.tuning import limit_tuning
from kernels.forgetting_attention import reference_attention

GATES = {"very local": -15.0, "local": -6.0, "near 0.5": 0.0, "medium": 3.5, "global": 8.0, "open": 30.0}
LOGITS = (1.0, 3.0, 10.0, 100.0)
NAMES = ("o", "dq", "dk", "dv", "dlog_fgate")
SHAPE = (2, 1000, 16)


@dataclass(frozen=True)
class Regime:
    """Inputs (q, k, v, log_fgate, with gradient), dO, and [o, dq, dk, dv, dlog_fgate] in float64."""

    inputs: list[Tensor]
    do: Tensor
    exact: list[Tensor]


def make_regime(logit: float, gates: str, head_dim: int) -> Regime:
    """On the GPU; the exact values come from the readable reference."""
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, do = (torch.randn(*SHAPE, head_dim, device="cuda", generator=generator).to(DTYPE) for _ in range(4))
    z = torch.randn(SHAPE, device="cuda", generator=generator)
    inputs = [x.requires_grad_() for x in (logit * q, k, v, logsigmoid(z + GATES[gates]))]
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    o = reference_attention(*exact_inputs)
    return Regime(inputs, do, [o, *torch.autograd.grad(o, exact_inputs, do.double())])


def relative_errors(attention: Callable[..., Tensor], regime: Regime) -> list[float]:
    """Of o, dq, dk, dv and dlog_fgate; inf where something is not finite."""
    o = attention(*regime.inputs)
    found = [o, *torch.autograd.grad(o, regime.inputs, regime.do)]
    errors = [((x.double() - y).norm() / y.norm()).item() for x, y in zip(found, regime.exact, strict=True)]
    return [math.inf if math.isnan(error) else error for error in errors]


def measure_errors(path: Path, only: list[str] | None, version: str, head_dims: tuple[int, ...] = (64, 128)) -> str:
    """Write one row per provider (`only` those named, or all) and regime to `path`, replacing what is there; returns them
    as a Markdown table."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    run = (date, version, torch.cuda.get_device_name(), torch.__version__, triton.__version__)
    unwanted = (BASELINE, "softmax flash-2", "ours, pruned", "authors, pruned")
    found = {name: f for name, f in providers().items() if name not in unwanted and (only is None or name in only)}
    limit_tuning()  # errors hardly depend on tile sizes: a short search will do
    lines = [f"| D | logits | gates | provider | {' | '.join(NAMES)} |", "|---" * (4 + len(NAMES)) + "|"]
    rows: list[tuple[object, ...]] = []
    for head_dim in head_dims:
        for logit in LOGITS:
            for gates in GATES:
                regime = make_regime(logit, gates, head_dim)
                for name, attention in found.items():
                    errors = [f"{x:.2e}" for x in relative_errors(attention, regime)]
                    rows.append((*run, name, head_dim, logit, gates, *errors))
                    lines.append(f"| {head_dim} | {logit:g} | {gates} | {name} | {' | '.join(errors)} |")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        header = ("date", "version", "gpu", "torch", "triton", "provider", "head_dim", "logit", "gates", *NAMES)
        writer.writerows([header, *rows])
    return "\n".join(lines)
