"""Inputs in the regimes that matter, two oracles, and the rule that results are judged by: error against float64, relative to
eager's. Options have the names and meanings of `stick_breaking_attention`'s."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.stick_breaking import reference_attention
from tests.kernels.forgetting_attention.oracle import errors

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
    regime: str, B: int, Q: int, T: int, H: int, key_heads: int, D: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0
) -> Case:
    """Logits around N(0, 1); 0; N(-7, 1), which leave a stick for thousands of keys; -9 with a +9 now and then; N(0, 225^2), up
    to 1e3. With the default scale."""
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


def first_keys(q: Tensor, k: Tensor, seq_start: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """First key that each query sees (B, Q)."""
    Q, T = q.shape[1], k.shape[1]
    if cu_seqlens is not None:
        ends = cu_seqlens.tolist()
        return torch.tensor([[max(end for end in ends if end <= position) for position in range(T)]], device=q.device)
    start = torch.zeros(len(q), dtype=torch.int64) if seq_start is None else seq_start
    return start.to(q.device)[:, None].expand(-1, Q)


def reference(q: Tensor, k: Tensor, v: Tensor, *, seq_start=None, cu_seqlens=None, **options: Any):  # type: ignore[no-untyped-def]
    return reference_attention(q, k, v, first_key_BQ=first_keys(q, k, seq_start, cu_seqlens), **options)


def brute_force(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, attend_current: bool, seq_start: Tensor
) -> tuple[Tensor, Tensor]:
    """The product form, key by key from the nearest, each taking its share of what is left (I9)."""
    Q, H, _ = q.shape[1:]
    T = k.shape[1]
    k, v = (x.repeat_interleave(H // x.shape[2], 2) for x in (k, v))
    o, left = torch.zeros_like(q), torch.ones_like(q[..., 0])
    position_Q = torch.arange(T - Q, T) + int(attend_current)
    for j in reversed(range(T)):
        logit_BQH = (q * k[:, None, j]).sum(-1) * scale
        visible_BQ1 = ((j < position_Q) & (j >= seq_start[:, None]))[..., None]
        taken = torch.where(visible_BQ1, left * torch.sigmoid(logit_BQH), 0.0)
        o = o + taken[..., None] * v[:, None, j]
        left = torch.where(visible_BQ1, left * torch.sigmoid(-logit_BQH), left)
    return o, left


def output_and_gradients(attention: Attention, case: Case, **options: Any) -> list[Tensor]:
    """[o, remainder, dq, dk, dv]."""
    inputs = [x.detach().clone().requires_grad_() for x in case[:3]]
    o, remainder = attention(*inputs, **options)
    grads = torch.autograd.grad([o, remainder], inputs, case[3:])
    return [o.detach(), remainder.detach(), *grads]


def assert_right(attention: Attention, case: Case, *, tail: int | None = None, **options: Any) -> None:
    """Hold `attention(q, k, v, **options)` to 2x the error of eager attention in the case's dtype (gradients 3x), plus 2 ulp of
    the largest value in that dtype, plus 8 ulp of float32 (a GPU's exponentials err by two, and two meet in a weight) of what
    each is a share or a difference of: a whole stick times v (o), the gradient of a weight times k (dq) or q (dk), and for dv
    the root of the sum of the weights that a key receives times dO^2, as its queries err each for itself: a sink receives many
    whole sticks. With `tail`, of the last so many queries and, as only they see them, the last keys of a long sequence."""
    last = case if tail is None else Case(case.q[:, -tail:], case.k, case.v, case.do[:, -tail:], case.dr[:, -tail:])
    end = slice(-tail if tail else None, None)
    exact = output_and_gradients(reference, last.to(torch.float64), **options)
    eager = errors(output_and_gradients(reference, last, **options), exact)
    found = output_and_gradients(attention, case, **options)
    assert all(bool(x.isfinite().all()) for x in found)
    off = errors([x[:, end] for x in found], [x[:, end] for x in exact])
    q, k, v, do, dr = (x.double() for x in last)
    scale = options.get("scale", q.shape[-1] ** -0.5)
    weight_gradient = (do.norm(dim=-1).max() * v.norm(dim=-1).max() + dr.abs().max()).item() * scale
    largest_q, largest_k, largest_v = (x.abs().max().item() for x in (q, k, v))
    squares = last._replace(do=do**2, dr=0 * dr).to(torch.float64)
    received = output_and_gradients(reference, squares, **options)[-1].max().item()
    wholes = (largest_v, 1.0, weight_gradient * largest_k, weight_gradient * largest_q, received**0.5)
    ulp, ulp32 = torch.finfo(case.q.dtype).eps, torch.finfo(torch.float32).eps
    for name, error, own, y, whole in zip(NAMES, off, eager, exact, wholes, strict=True):
        factor = 2 if name in ("o", "remainder") else 3
        allowed = factor * own + 2 * ulp * y.abs().max().item() + 8 * ulp32 * whole
        assert error <= allowed, f"{name}: {error:.2e} of {allowed:.2e} allowed"
