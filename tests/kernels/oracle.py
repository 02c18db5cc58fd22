"""Inputs in the regimes that matter and the rule that results are judged by: error against float64, relative to
eager's."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.forgetting_attention import reference_attention

GATES = ("zero", "near_zero", "one", "twenty", "single_cliff", "mixture", "cuts")
NAMES = ("o", "dq", "dk", "dv", "dlog_fgate")


def log_gates(kind: str, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Log forget gates (B, T, H), float32: open, almost open, around -1 and -20, one -1e4, a bit of all, and exact
    zeros."""
    noise = torch.rand(shape, generator=generator)
    middle = shape[1] // 2
    if kind == "zero":
        return torch.zeros(shape)
    if kind == "near_zero":
        return -1e-3 * noise
    if kind == "one":
        return -0.5 - noise
    if kind == "twenty":
        return -15.0 - 10.0 * noise
    if kind == "single_cliff":
        gates = -0.01 * noise
        gates[:, middle] = -1e4
        return gates
    pick = torch.rand(shape, generator=generator)
    gates = torch.where(pick < 0.5, -0.05 * noise, -2.0 * noise)
    gates = torch.where(pick > 0.95, -20.0 * noise, gates)
    return torch.where(pick > 0.99, -1e4 if kind == "mixture" else -torch.inf, gates)


class Case(NamedTuple):
    """q, k, v, log_fgate and the gradient that arrives at o."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_fgate: Tensor
    do: Tensor

    def to(self, dtype: torch.dtype) -> "Case":
        """Products in `dtype`; gates in float32, or float64 for the oracle."""
        gate_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        q, k, v, log_fgate, do = self
        return Case(q.to(dtype), k.to(dtype), v.to(dtype), log_fgate.to(gate_dtype), do.to(dtype))


def make_case(
    gates: str,
    B: int,
    Q: int,
    T: int,
    H: int,
    key_heads: int,
    D: int,
    dtype: torch.dtype,
    device: str = "cpu",
    seed: int = 0,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    q, do = (torch.randn(B, Q, H, D, generator=generator) for _ in range(2))
    k, v = (torch.randn(B, T, key_heads, D, generator=generator) for _ in range(2))
    case = Case(q, k, v, log_gates(gates, (B, T, H), generator), do).to(dtype)
    return Case(*(x.to(device) for x in case))


def output_and_gradients(attention: Callable[..., Tensor], case: Case) -> list[Tensor]:
    """[o, dq, dk, dv, dlog_fgate]."""
    inputs = [x.detach().clone().requires_grad_() for x in case[:4]]
    o = attention(*inputs)
    grads = torch.autograd.grad(o, inputs, case.do)
    return [o.detach(), *grads]


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    """Largest absolute error of each tensor; inf if anything is not finite."""
    return [
        (x.double() - y).abs().max().item() if bool(x.isfinite().all()) else float("inf")
        for x, y in zip(found, exact, strict=True)
    ]


def allowed_errors(case: Case, exact: list[Tensor], **options: Tensor | float | None) -> list[float]:
    """2x the error of eager attention in the case's dtype (gradients 3x), plus a few ulp.

    Of the largest value in that dtype; in float32 of what the gradients are differences of (do . v, times q or k); and
    half an ulp of o, which is stored in that dtype and enters every dS through do . o.
    """
    eager = errors(output_and_gradients(lambda *x: reference_attention(*x, **options), case), exact)
    q, k, v, _, do = (x.double() for x in case)
    rounding = torch.finfo(case.q.dtype).eps / 2 * (do * exact[0]).abs().sum(-1).max().item()
    weight_gradient = (do.norm(dim=-1).max() * v.norm(dim=-1).max()).item()
    scale = q.shape[-1] ** -0.5
    difference = (0.0, scale * k.abs().max().item(), scale * q.abs().max().item(), 0.0, 1.0)
    ulp, ulp32 = torch.finfo(case.q.dtype).eps, torch.finfo(torch.float32).eps
    return [
        (2.0 if name == "o" else 3.0) * error
        + 2 * ulp * y.abs().max().item()
        + (4 * ulp32 * weight_gradient + rounding) * factor
        for name, error, y, factor in zip(NAMES, eager, exact, difference, strict=True)
    ]


def assert_right(attention: Callable[..., Tensor], case: Case, **options: Tensor | float | None) -> dict[str, float]:
    """Hold `attention(q, k, v, log_fgate)` to the float64 oracle by the rule above; returns error / allowed per
    tensor."""
    exact = output_and_gradients(lambda *x: reference_attention(*x, **options), case.to(torch.float64))
    allowed = allowed_errors(case, exact, **options)
    found = errors(output_and_gradients(attention, case), exact)
    ratios = {name: error / limit if error else 0.0 for name, error, limit in zip(NAMES, found, allowed, strict=True)}
    wrong = {name: f"{r:.2f}x allowed" for name, r in ratios.items() if not r <= 1.0}
    assert not wrong, wrong
    return ratios
