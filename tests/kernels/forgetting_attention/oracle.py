"""The oracle: forgetting attention with a brute-force mask, nothing shared with the code that it judges. And the rule that
results are judged by: error against float64, relative to eager's.

Options have the names and meanings of `forgetting_attention`'s.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

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


def visible_pairs(
    log_fgate: Tensor,
    num_queries: int,
    *,
    adaptive_threshold: Tensor | float | None = None,
    seq_start: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    window_size: int | None = None,
) -> Tensor:
    """Tell which query sees which key, bool (B, H, Q, T), every rule written down pair by pair."""
    B, T, H = log_fgate.shape
    j = torch.arange(T, device=log_fgate.device)
    i = j[T - num_queries :, None]
    seen = (j <= i).expand(B, H, num_queries, T)
    if window_size is not None:
        seen = seen & (i - j < window_size)
    if seq_start is not None:
        seen = seen & (j >= seq_start.view(B, 1, 1, 1))
    if cu_seqlens is not None:
        document = (j[:, None] >= cu_seqlens).sum(1)
        seen = seen & (document[i] == document[j])
    cuts = (log_fgate < -2000).cumsum(1).transpose(1, 2)
    seen = seen & (cuts[..., T - num_queries :, None] == cuts[..., None, :])
    if adaptive_threshold is not None:
        tile = 128
        cum = cumulative(log_fgate)
        first = (i - (T - num_queries)) // tile * tile + T - num_queries  # of the query's tile
        last = (j // tile * tile + tile - 1).clamp(max=T - 1)  # of the key's tile
        largest = cum[..., first] - cum[..., None, last]
        threshold = torch.as_tensor(adaptive_threshold, device=log_fgate.device).expand(B, H)[..., None, None]
        seen = seen & ((largest >= threshold) | (j // tile >= first // tile))
    return seen


def cumulative(log_fgate: Tensor) -> Tensor:
    """Sums of the log gates, float64 (B, H, T); cuts are for `visible_pairs`."""
    gates = log_fgate.transpose(1, 2).double()
    return gates.where(gates >= -2000, 0.0).cumsum(-1)


def attend(q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor, *, scale: float | None = None, **options: Any) -> Tensor:
    """Eager forgetting attention: products in the inputs' dtype, softmax in float32 or float64; gradients from autograd."""
    Q, H, D = q.shape[1:]
    scale = D**-0.5 if scale is None else scale
    T = k.shape[1]
    seen = visible_pairs(log_fgate.detach(), Q, **options)
    key, value = (x.transpose(1, 2).repeat_interleave(H // k.shape[2], 1) for x in (k, v))
    softmax_dtype = torch.promote_types(q.dtype, torch.float32)
    cum = cumulative(log_fgate)
    decay = (cum[..., T - Q :, None] - cum[..., None, :]).to(softmax_dtype)
    logits = (q.transpose(1, 2) @ key.transpose(2, 3)).to(softmax_dtype) * scale + decay
    some = seen.any(-1, keepdim=True)
    weights = logits.masked_fill(~seen, -torch.inf).masked_fill(~some, 0.0).softmax(-1).masked_fill(~some, 0.0)
    return (weights.to(value.dtype) @ value).transpose(1, 2)


def output_and_gradients(attention: Callable[..., Tensor], case: Case, **options: Any) -> list[Tensor]:
    """[o, dq, dk, dv, dlog_fgate]."""
    inputs = [x.detach().clone().requires_grad_() for x in case[:4]]
    o = attention(*inputs, **options)
    grads = torch.autograd.grad(o, inputs, case.do)
    return [o.detach(), *grads]


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    """Largest absolute error of each tensor; inf if anything is not finite."""
    return [
        (x.double() - y).abs().max().item() if bool(x.isfinite().all()) else float("inf")
        for x, y in zip(found, exact, strict=True)
    ]


def assert_right(attention: Callable[..., Tensor], case: Case, **options: Any) -> None:
    """Hold `attention(q, k, v, log_fgate, **options)` to 2x the error of eager attention in the case's dtype (gradients 3x),
    plus a few ulp.

    Of the largest value in that dtype; in float32 of what the gradients are differences of (do . v, times q or k); and
    half an ulp of o, which is stored in that dtype and enters every dS through do . o."""
    exact = output_and_gradients(attend, case.to(torch.float64), **options)
    eager = errors(output_and_gradients(attend, case, **options), exact)
    found = errors(output_and_gradients(attention, case, **options), exact)
    q, k, v, _, do = (x.double() for x in case)
    ulp, ulp32 = torch.finfo(case.q.dtype).eps, torch.finfo(torch.float32).eps
    difference = 4 * ulp32 * (do.norm(dim=-1).max() * v.norm(dim=-1).max()).item()
    difference += ulp / 2 * (do * exact[0]).abs().sum(-1).max().item()
    scale = abs(options.get("scale", q.shape[-1] ** -0.5))
    factors = (0.0, scale * k.abs().max().item(), scale * q.abs().max().item(), 0.0, 1.0)
    for name, error, own, y, factor in zip(NAMES, found, eager, exact, factors, strict=True):
        allowed = (2 if name == "o" else 3) * own + 2 * ulp * y.abs().max().item() + difference * factor
        assert error <= allowed, f"{name}: {error:.2e} of {allowed:.2e} allowed"
