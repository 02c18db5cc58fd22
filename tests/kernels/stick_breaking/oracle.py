"""Inputs in the regimes that matter, a brute-force oracle, and the rule that results are judged by: error against
float64, relative to eager's."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.stick_breaking import reference_attention

REGIMES = ("random", "even", "long", "sinks", "huge")
NAMES = ("o", "remainder", "dq", "dk", "dv")
Attention = Callable[..., tuple[Tensor, Tensor]]


class Case(NamedTuple):
    """q, k, v and the gradients that arrive at o and at the remainder."""

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    dr: Tensor

    def to(self, dtype: torch.dtype) -> "Case":
        """Products in `dtype`; the remainder in float32, or float64 for the oracle."""
        *products, dr = self
        return Case(*(x.to(dtype) for x in products), dr.to(torch.promote_types(dtype, torch.float32)))


def make_case(
    regime: str,
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
    """Logits around N(0, 1); 0; N(-7, 1), which leave a stick for thousands of keys; -9 with a +9 now and then; N(0,
    225^2), up to 1e3."""
    generator = torch.Generator().manual_seed(seed)
    q, do = (torch.randn(B, Q, H, D, generator=generator) for _ in range(2))
    k, v = (torch.randn(B, T, key_heads, D, generator=generator) for _ in range(2))
    dr = torch.randn(B, Q, H, generator=generator)
    if regime == "even":
        k = torch.zeros_like(k)
    elif regime == "huge":
        # Integers: every dtype has them, and their products, exactly, so that all compute the same logits.
        q, k = (15.0 * q).round(), (15.0 * k).round()
    elif regime != "random":
        shift = torch.full((B, T, key_heads), -7.0)
        if regime == "sinks":
            shift = torch.where(torch.rand(shift.shape, generator=generator) < 0.02, 9.0, -9.0)
        q[..., 0], k[..., 0] = 1.0, shift * D**0.5
    return Case(*(x.to(device) for x in Case(q, k, v, do, dr).to(dtype)))


def make_nearly_used_up(dtype: torch.dtype, power: int) -> Case:
    """One query, 600 keys that leave 2^-0.2 of the stick each; from the 129th nearest on, values of 2^power."""
    q, k, v = torch.zeros(1, 1, 1, 16), torch.zeros(1, 600, 1, 16), torch.ones(1, 600, 1, 16)
    q[..., 0], k[..., 0] = 1.0, 4.0 * math.log(2.0**0.2 - 1.0)
    v[:, :471] = 2.0**power
    return Case(q, k, v, torch.ones(1, 1, 1, 16), torch.zeros(1, 1, 1)).to(dtype)


def brute_force(
    q: Tensor, k: Tensor, v: Tensor, *, attend_current: bool = False, first_key_BQ: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The product form, key by key from the nearest, each taking its share of what is left (I9)."""
    Q, H, D = q.shape[1:]
    T = k.shape[1]
    k, v = (x.repeat_interleave(H // x.shape[2], 2) for x in (k, v))
    o, left = torch.zeros_like(q), torch.ones_like(q[..., 0])
    position_Q = torch.arange(T - Q, T) + int(attend_current)
    for j in reversed(range(T)):
        logit_BQH = (q * k[:, None, j]).sum(-1) / D**0.5
        visible_BQ1 = (j < position_Q).expand(q.shape[0], -1)[..., None]
        if first_key_BQ is not None:
            visible_BQ1 = visible_BQ1 & (j >= first_key_BQ)[..., None]
        taken = torch.where(visible_BQ1, left * torch.sigmoid(logit_BQH), 0.0)
        o = o + taken[..., None] * v[:, None, j]
        left = torch.where(visible_BQ1, left * torch.sigmoid(-logit_BQH), left)
    return o, left


def output_and_gradients(attention: Attention, case: Case) -> list[Tensor]:
    """[o, remainder, dq, dk, dv]."""
    inputs = [x.detach().clone().requires_grad_() for x in case[:3]]
    o, remainder = attention(*inputs)
    grads = torch.autograd.grad([o, remainder], inputs, case[3:])
    return [o.detach(), remainder.detach(), *grads]


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    """Largest absolute error of each tensor; inf if anything is not finite."""
    return [
        (x.double() - y).abs().max().item() if bool(x.isfinite().all()) else float("inf")
        for x, y in zip(found, exact, strict=True)
    ]


def allowed_errors(case: Case, exact: list[Tensor], **options: object) -> list[float]:
    """2x the error of eager attention in the case's dtype (gradients 3x), plus 2 ulp of the largest value in that dtype,
    plus 8 ulp of float32 (a GPU's exponentials err by two, and two meet in a weight) of what each is a share or a
    difference of: a whole stick times v (o), the gradient of a weight times k (dq) or q (dk), and for dv the root of the sum of
    the weights that a key receives times dO^2, as its queries err each for itself: a sink receives many whole sticks."""
    eager = errors(output_and_gradients(lambda *x: reference_attention(*x, **options), case), exact)  # type: ignore[arg-type]
    q, k, v, do, dr = (x.double() for x in case)
    weight_gradient = (do.norm(dim=-1).max() * v.norm(dim=-1).max() + dr.abs().max()).item() * q.shape[-1] ** -0.5
    largest_q, largest_k, largest_v = (x.abs().max().item() for x in (q, k, v))
    squares = case._replace(do=do**2, dr=0 * dr).to(torch.float64)
    received = output_and_gradients(lambda *x: reference_attention(*x, **options), squares)[-1]  # type: ignore[arg-type]
    wholes = (largest_v, 1.0, weight_gradient * largest_k, weight_gradient * largest_q, received.max().item() ** 0.5)
    ulp, ulp32 = torch.finfo(case.q.dtype).eps, torch.finfo(torch.float32).eps
    return [
        (2.0 if name in ("o", "remainder") else 3.0) * error + 2 * ulp * y.abs().max().item() + 8 * ulp32 * whole
        for name, error, y, whole in zip(NAMES, eager, exact, wholes, strict=True)
    ]


def assert_right(attention: Attention, case: Case, **options: object) -> dict[str, float]:
    """Hold `attention(q, k, v)` to the float64 oracle by the rule above; returns error / allowed per tensor."""
    exact = output_and_gradients(lambda *x: reference_attention(*x, **options), case.to(torch.float64))  # type: ignore[arg-type]
    allowed = allowed_errors(case, exact, **options)
    found = errors(output_and_gradients(attention, case), exact)
    ratios = {name: error / limit if error else 0.0 for name, error, limit in zip(NAMES, found, allowed, strict=True)}
    wrong = {name: f"{r:.2f}x allowed" for name, r in ratios.items() if not r <= 1.0}
    assert not wrong, wrong
    return ratios
