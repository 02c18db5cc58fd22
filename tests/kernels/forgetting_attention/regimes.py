"""Inputs by regime rather than by shape, and a bound for every number that comes out.

The bounds follow the roundings through the computation, to first order and in the worst case: weights, dS and results are
rounded to the inputs' dtype, everything else to float32. They know how often each weight counts, so that local gates,
whose gradients are small, are held to small errors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from tests.kernels.forgetting_attention.oracle import (
    GATES,
    NAMES,
    Case,
    cumulative,
    log_gates,
    output_and_gradients,
    visible_pairs,
)

LIMITS = ("none", "window", "padding", "documents")
OVERFLOW = Path(__file__).parent / "data" / "overflow.safetensors"
LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class Regime:
    """Largest logit in nats, size of v, gates (`oracle.GATES`, or "cancelling": one in every tile of 128 takes back what
    the logits of the tile before it add), and what is hidden on the left."""

    logit: float
    gates: str
    value: float = 1.0
    limits: str = "none"

    def make(self, T: int, D: int, dtype: torch.dtype, device: str, seed: int) -> tuple[Case, dict[str, Any]]:
        """One head; options for `forgetting_attention`."""
        generator = torch.Generator().manual_seed(seed)
        q, k, v, do = (torch.randn(1, T, 1, D, generator=generator) for _ in range(4))
        if self.gates == "cancelling":
            q, k = 0.3 * q + 3.0, (0.3 * k + 3.0) * (torch.arange(T) // 128 % 2 == 0).view(1, T, 1, 1)
            gates = -0.01 * torch.rand(1, T, 1, generator=generator)
            gates[:, int(torch.randint(1, 128, (), generator=generator)) :: 128] -= self.logit
        else:
            gates = log_gates(self.gates, (1, T, 1), generator)
        q *= self.logit / (torch.einsum("bqhd,bkhd->bqk", q, k).abs().max() * D**-0.5).clamp(min=1e-9)
        case = Case(*(x.to(device) for x in Case(q, k, self.value * v, gates, do).to(dtype)))
        options: dict[str, Any] = {}
        if self.limits == "window":
            options["window_size"] = 1 + seed % T
        if self.limits == "padding":
            options["seq_start"] = torch.tensor([seed % (T + 1)], device=device)
        if self.limits == "documents":  # of one token, at both ends of a tile too, and long ones
            inner = sorted({n for n in (1, 2, 127, 128, 129, 200, 201, T - 1) if 0 < n < T})
            options["cu_seqlens"] = torch.tensor([0, *inner, T], device=device, dtype=torch.int32)
        return case, options


def regimes() -> st.SearchStrategy[Regime]:
    """Anything that training may reach."""
    return st.builds(
        Regime,
        logit=st.one_of(st.sampled_from((1.0, 30.0, 100.0, 300.0)), st.floats(1.0, 300.0), st.floats(78.0, 92.0)),
        gates=st.one_of(st.sampled_from(GATES), st.just("cancelling")),
        value=st.sampled_from((1e-3, 1.0, 1e4)),
        limits=st.sampled_from(LIMITS),
    )


GRID = [
    Regime(84.0, "cancelling", 1e4),  # with seed 4, what `out_of_range` does, among other numbers
    *(Regime(logit, gates) for logit in (1.0, 30.0, 100.0, 300.0) for gates in (*GATES, "cancelling")),
    *(Regime(30.0, gates, value) for value in (1e-3, 1e4) for gates in ("mixture", "cancelling")),
    *(Regime(logit, gates, 1.0, limits) for logit in (3.0, 100.0) for gates in ("cuts", "cancelling") for limits in LIMITS[1:]),
]
SAMPLED = [
    GRID[0],
    Regime(1.0, "zero"),
    Regime(1.0, "twenty"),
    Regime(30.0, "near_zero"),
    Regime(30.0, "cuts"),
    Regime(100.0, "one"),
    Regime(100.0, "single_cliff"),
    Regime(300.0, "mixture"),
    Regime(30.0, "mixture", 1e-3),
    Regime(3.0, "cuts", 1.0, "documents"),
    Regime(100.0, "cancelling", 1.0, "padding"),
    Regime(3.0, "cancelling", 1.0, "window"),
]
"""Every kind of gate, size of logits and limit of the grid at least once."""


def out_of_range(device: str) -> list[Case]:
    """Return what exp2 without a maximum cannot do, in a row's second tile of keys: two tiles of equal logits and values.

    Before the diagonal, weights and their products with v sum up to 2^127.5 and 2^129.5; to 2^118 and 2^130; to 2^127.5
    and 2^117.5; then a gate takes 70 nats back, and the row's whole sum is an innocent 2^17 or 2^26. Or every weight is
    2^-139, and the first tile counts as much as the second.
    """
    return [
        _two_tiles(2.609375, 0.0, 4.0, -70.0, device),
        _two_tiles(2.40625, 0.0, 4096.0, -70.0, device),
        _two_tiles(2.609375, 0.0, 2.0**-10, -70.0, device),
        _two_tiles(-3.0, -3.0, 1.0, 0.0, device),
    ]


def _two_tiles(first_key: float, second_key: float, value: float, gate: float, device: str) -> Case:
    """Logits are 32 times a key's number; v is `value` in the first tile and noise in the second."""
    case, _ = Regime(1.0, "zero").make(256, 64, torch.bfloat16, device, 0)
    case.q[:] = 4.0
    case.k[:, :128], case.k[:, 128:] = first_key, second_key
    case.v[:, :128] = value
    case.log_fgate[:, 192] = gate
    return case


def overflow_of_a_training(device: str) -> Case:
    """Two tiles of a head of FoX (LLaMA) at step 74, with logits up to 96: the product with V left float32 in row 239."""
    x = {name: t.view(1, 256, 1, -1).to(device) for name, t in load_file(OVERFLOW).items()}
    do = torch.randn(x["q"].shape, generator=torch.Generator().manual_seed(0)).to(x["q"])
    return Case(x["q"], x["k"], x["v"], x["log_fgate"][..., 0], do)


def exact_and_bounds(case: Case, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    """[o, dq, dk, dv, dlog_fgate] in float64, and how far each number may be off. H == Hkv == 1 or equal heads."""
    unit = torch.finfo(case.q.dtype).eps / 2
    least = max(2 * unit * torch.finfo(case.q.dtype).tiny, 2.0**-100)  # what is smaller may become 0
    q, k, v, _, do = (x.transpose(1, 2) for x in case.to(torch.float64))
    Q, D = q.shape[-2:]
    scale = D**-0.5
    seen = visible_pairs(case.log_fgate, Q, **options)
    cum = cumulative(case.log_fgate)
    logits = scale * q @ k.mT + cum[..., cum.shape[-1] - Q :, None] - cum[..., None, :]
    some = seen.any(-1, keepdim=True)
    p = logits.masked_fill(~seen, -torch.inf).masked_fill(~some, 0.0).softmax(-1).masked_fill(~seen, 0.0)
    o, dp = p @ v, do @ v.mT
    ds = p * (dp - (do * o).sum(-1, keepdim=True))
    exact = [o, scale * ds @ k, scale * ds.mT @ q, p.mT @ do, _crossing(ds)]

    # Exponents in float32: products of q and k, and c inside a tile, unless that is kept in float64.
    span = (
        0.0
        if case.q.dtype == torch.float32
        else (cum[..., :-128] - cum[..., 128:]).amax()
        if cum.shape[-1] > 128
        else -cum.min()
    )
    bits = LOG2E * (scale * (q.abs() @ k.abs().mT).amax(-1, keepdim=True) + span)
    relative = 2.0**-21 * (4.0 + bits)
    size = p @ v.abs()
    error_o = (2 * unit + 2 * relative) * size + least * (seen.double() @ v.abs()) + 2.0**-50 * v.abs().max()
    error_delta = (do.abs() * error_o).sum(-1, keepdim=True) + 2.0**-20 * (do.abs() @ v.abs().mT)
    error_ds = (unit + 2 * relative) * ds.abs() + (p + 2.0**-100) * error_delta
    error_ds = (error_ds + least).where(seen, 0.0)
    bounds = [
        error_o,
        scale * error_ds @ k.abs() + unit * exact[1].abs() + least,
        scale * error_ds.mT @ q.abs() + unit * exact[2].abs() + least,
        ((2 * unit + 2 * relative) * p + least * seen).mT @ do.abs() + least,
        # Row and column sums cancel where nothing crosses the gate, up to what two kernels compute differently.
        _crossing(error_ds) + 2 * (relative * (ds.abs() + error_ds)).sum((-1, -2))[..., None],
    ]
    exact[4], bounds[4] = exact[4][..., None], bounds[4][..., None]
    exact, bounds = ([x.transpose(1, 2) for x in xs] for xs in (exact, bounds))
    exact[4], bounds[4] = exact[4][..., 0], bounds[4][..., 0]
    return exact, bounds


def _crossing(ds: Tensor) -> Tensor:
    """Per gate t, the sum over queries from t on and keys before t: (B, H, T); 0 for the first. Q == T."""
    before = torch.nn.functional.pad(ds.cumsum(-1), (1, -1))  # keys before t
    return before.flip(-2).cumsum(-2).flip(-2).diagonal(dim1=-2, dim2=-1)


def assert_within(attention: Callable[..., Tensor], case: Case, **options: Any) -> None:
    """Every number of o and the gradients is finite and within its bound."""
    _compare(output_and_gradients(attention, case, **options), *exact_and_bounds(case, **options))


def assert_decoding_within(attention: Callable[..., Tensor], case: Case, **options: Any) -> None:
    """The same for the output of the last query alone."""
    (exact, *_), (bound, *_) = exact_and_bounds(case, **options)
    q, *others, _ = case
    _compare([attention(q[:, -1:], *others, **options)], [exact[:, -1:]], [bound[:, -1:]])


def _compare(found: list[Tensor], exact: list[Tensor], bounds: list[Tensor]) -> None:
    for name, x, y, bound in zip(NAMES, found, exact, bounds, strict=False):
        share = ((x.double() - y).abs() / bound.clamp(min=1e-300)).max().item()
        assert bool(x.isfinite().all()) and share <= 1.0, f"{name}: {share:.2f}x its bound"
