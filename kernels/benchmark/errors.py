"""How exact each provider is, regime by regime: error of outputs and gradients against float64, relative to the norm of each.

A regime is the size of q (q and k are normal, so with D = 64 logits have that standard deviation) and where the gates are:
the mean of their logits, from very local (almost nothing is kept) over near 0.5, where training starts, to open.
"""

import csv
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton
from torch import Tensor
from torch.nn.functional import logsigmoid

from kernels.benchmark.measure import BASELINE, DTYPE, providers
from kernels.forgetting_attention import reference_attention

GATES = {"very local": -15.0, "local": -6.0, "near 0.5": 0.0, "medium": 3.5, "global": 8.0, "open": 30.0}
LOGITS = (1.0, 3.0, 10.0, 100.0)
NAMES = ("o", "dq", "dk", "dv", "dlog_fgate")
SHAPE = (2, 1000, 16)


def regime_inputs(logit: float, gates: str, head_dim: int) -> tuple[list[Tensor], Tensor]:
    """q, k, v, log_fgate on the GPU, with gradient, and dO."""
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, do = (torch.randn(*SHAPE, head_dim, device="cuda", generator=generator) for _ in range(4))
    z = torch.randn(SHAPE, device="cuda", generator=generator)
    inputs = [(logit * q).to(DTYPE), k.to(DTYPE), v.to(DTYPE), logsigmoid(z + GATES[gates])]
    return [x.requires_grad_() for x in inputs], do.to(DTYPE)


def relative_errors(attention: Callable[..., Tensor], logit: float, gates: str, head_dim: int) -> list[float]:
    """Of o, dq, dk, dv and dlog_fgate; inf where something is not finite."""
    inputs, do = regime_inputs(logit, gates, head_dim)
    exact_inputs = [x.detach().double().requires_grad_() for x in inputs]
    exact_o = reference_attention(*exact_inputs)
    exact = [exact_o, *torch.autograd.grad(exact_o, exact_inputs, do.double())]
    o = attention(*inputs)
    found = [o, *torch.autograd.grad(o, inputs, do)]
    errors = [((x.double() - y).norm() / y.norm()).item() for x, y in zip(found, exact, strict=True)]
    return [math.inf if math.isnan(error) else error for error in errors]


def measure_errors(path: Path, only: list[str] | None, version: str, head_dims: tuple[int, ...] = (64, 128)) -> str:
    """Write one row per provider (`only` those named, or all) and regime to `path`, replacing what is there; returns them
    as a Markdown table."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    run = (date, version, torch.cuda.get_device_name(), torch.__version__, triton.__version__)
    unwanted = (BASELINE, "softmax flash-2", "ours, pruned", "authors, pruned")
    found = {name: f for name, f in providers().items() if name not in unwanted and (only is None or name in only)}
    lines = [f"| D | logits | gates | provider | {' | '.join(NAMES)} |", "|---" * (4 + len(NAMES)) + "|"]
    rows: list[tuple[object, ...]] = []
    for head_dim in head_dims:
        for logit in LOGITS:
            for gates in GATES:
                for name, attention in found.items():
                    errors = [f"{x:.2e}" for x in relative_errors(attention, logit, gates, head_dim)]
                    rows.append((*run, name, head_dim, logit, gates, *errors))
                    lines.append(f"| {head_dim} | {logit:g} | {gates} | {name} | {' | '.join(errors)} |")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        header = ("date", "version", "gpu", "torch", "triton", "provider", "head_dim", "logit", "gates", *NAMES)
        writer.writerows([header, *rows])
    return "\n".join(lines)
