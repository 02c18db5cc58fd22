"""Attention of the newest token over a cache, against the float64 oracle."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.forgetting_attention import (
    forgetting_attention,
    forgetting_attention_cached,
    gates_of_sums,
    sum_log_gates,
)
from tests.kernels.forgetting_attention.oracle import attend, cumulative, log_gates, make_case

LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"seq_start": torch.tensor([7, 700])},
    {"window_size": 177},
    {"seq_start": torch.tensor([650, 0]), "window_size": 90},
)


def expected(case: list[Tensor], scale: float | None, threshold: Any, seq_start: Tensor | None, window: int | None) -> Tensor:
    """The oracle, head by head; what a threshold leaves out is put into `seq_start`."""
    q, k, v, log_fgate = (x.double() for x in case)
    B, _, H = log_fgate.shape
    cum = cumulative(log_fgate)
    limit = -torch.inf if threshold is None else torch.as_tensor(threshold).double().expand(B, H)[..., None]
    first_BH = (cum[..., -1:] - cum < limit).sum(-1)
    if seq_start is not None:
        first_BH = torch.maximum(first_BH, seq_start[:, None])
    heads = []
    for head in range(H):
        group = head // (H // k.shape[2])
        one = q[:, :, head, None], k[:, :, group, None], v[:, :, group, None], log_fgate[..., head, None]
        heads.append(attend(*one, scale=scale, seq_start=first_BH[:, head], window_size=window))
    return torch.cat(heads, 2)


def assert_near(found: Tensor, wanted: Tensor, tolerance: float, *about: object) -> None:
    error = (found.cpu().double() - wanted).abs().max().item()
    assert error <= tolerance * max(1.0, wanted.abs().max().item()), (*about, error)


CASES = (  # gates, T, H, key heads, D, scale
    ("near_zero", 700, 2, 1, 32, None),
    ("one", 700, 2, 2, 16, 0.5),
    ("twenty", 700, 4, 2, 16, None),
    ("mixture", 700, 2, 2, 64, 0.05),
    ("cuts", 700, 2, 1, 128, None),
    ("single_cliff", 700, 2, 2, 32, None),
    ("zero", 1, 2, 2, 16, None),
)


def compare_with_oracle(backend: str, dtype: torch.dtype, tolerance: float, device: str = "cpu", cases: Any = CASES) -> None:
    """All kinds of gates, limits and thresholds; grouped queries; a head that is pruned away and one that is not beside it;
    also with room in the cache, whose `length` keys alone are filled in."""
    for gates, T, H, key_heads, D, scale in cases:
        q, k, v, log_fgate, _ = make_case(gates, 2, 1, T, H, key_heads, D, torch.float32)
        case = [x.to(dtype) for x in (q, k, v)]
        log_fgate = torch.cat([log_fgate[..., :1], 0.03 * log_fgate[..., 1:].clamp(min=-3.0)], -1)
        for threshold in (None, -0.2, torch.tensor([-3.0, -0.1]).repeat(H // 2)):
            for limits in LIMITS if T > 1 else LIMITS[:1]:
                start, window = limits.get("seq_start"), limits.get("window_size")
                wanted = expected([*case, log_fgate], scale, threshold, start, window)
                padded_BT = torch.arange(T) < (torch.zeros(2) if start is None else start)[:, None]
                held = [x.masked_fill(padded_BT[..., None, None], torch.nan) for x in case[1:]]  # may hold anything
                options = {**limits, "adaptive_threshold": threshold}
                options = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}
                options |= {"scale": scale, "backend": backend}
                moved = [x.to(device) for x in (case[0], *held, sum_log_gates(log_fgate))]
                found = forgetting_attention_cached(*moved, **options)
                assert found.dtype == dtype
                assert_near(found, wanted, tolerance, gates, threshold, limits)
                if window is None:
                    roomy = [torch.cat([x, x.new_full((2, 300, *x.shape[2:]), torch.nan)], 1) for x in moved[1:]]
                    options["length"] = torch.tensor([T], dtype=torch.int32, device=device)
                    found = forgetting_attention_cached(moved[0], *roomy, **options)
                    assert_near(found, wanted, tolerance, gates, threshold, limits, "room")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_equals_the_oracle(dtype: torch.dtype, tolerance: float) -> None:
    compare_with_oracle("chunked", dtype, tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 4e-3)])
def test_the_kernel_equals_the_oracle(dtype: torch.dtype, tolerance: float) -> None:
    compare_with_oracle("triton", dtype, tolerance, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("B", [1, 12])  # a few rows, and as many as fill a GPU
def test_the_kernel_repeats_its_bits_over_a_long_cache(B: int) -> None:
    """And nothing is used that PyTorch calls not deterministic."""
    q, k, v, log_fgate, _ = make_case("near_zero", B, 1, 20_000, 12, 12, 64, torch.bfloat16, "cuda")
    torch.use_deterministic_algorithms(True)
    try:
        sums = sum_log_gates(log_fgate)
        found = [forgetting_attention_cached(q, k, v, sums, adaptive_threshold=-5.0) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(sums.cpu(), log_fgate.cpu().double().cumsum(1), atol=1e-9, rtol=0)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    plain = forgetting_attention_cached(*(x[:1] for x in (q, k, v, sums)), adaptive_threshold=-5.0, backend="chunked")
    torch.testing.assert_close(found[0][:1], plain, atol=4e-3, rtol=1e-2)


@pytest.mark.parametrize("kind", ["mixture", "cuts"])
def test_sums_go_on_and_give_the_gates_back(kind: str) -> None:
    gates = log_gates(kind, (2, 300, 3), torch.Generator().manual_seed(0))
    whole = sum_log_gates(gates)
    torch.testing.assert_close(whole, gates.double().clamp(min=-4000).cumsum(1), atol=1e-9, rtol=0)
    pieces = [sum_log_gates(gates[:, :200])]
    for piece in (gates[:, 200:201], gates[:, 201:]):
        pieces.append(sum_log_gates(piece, pieces[-1][:, -1:]))
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-9, rtol=0)
    back = gates_of_sums(whole)
    assert not back[:, 0].any()
    torch.testing.assert_close(back[:, 1:], gates[:, 1:].clamp(min=-4000), atol=1e-9, rtol=1e-6)
    with pytest.raises(ValueError, match="log_fgate reaches"):
        sum_log_gates(gates + 1)


def test_a_sum_above_the_one_before_is_an_open_gate() -> None:
    """Sums are added tile by tile, so that after an open gate one may exceed the sum before it by its last digit."""
    sums = torch.tensor([-1000.0, -1000.0 + 2.0**-43, -1000.5], dtype=torch.float64).view(1, 3, 1)
    gates = gates_of_sums(sums)
    assert gates.flatten().tolist() == [0.0, 0.0, -0.5]
    forgetting_attention(*torch.ones(3, 1, 3, 1, 16), gates)  # takes no positive gate


def test_digits_are_kept_far_into_a_sequence() -> None:
    """After a sum of 1e6, two gates of 1e-4 are still told apart."""
    q, k, v, log_fgate, _ = make_case("zero", 1, 1, 50, 1, 1, 16, torch.float64)
    log_fgate -= 1e-4 * torch.rand(1, 50, 1, dtype=torch.float64)
    starts = torch.tensor([0.0, -1e6], dtype=torch.float64).view(2, 1, 1, 1)
    near, far = (forgetting_attention_cached(q, k, v, sum_log_gates(log_fgate, start)) for start in starts)
    torch.testing.assert_close(far, near, atol=1e-9, rtol=0)


def test_mistakes_are_named() -> None:
    q, k, sums = torch.zeros(2, 1, 4, 16), torch.zeros(2, 9, 2, 16), torch.zeros(2, 9, 4).double()
    for words, given, options in (
        ("2 positions", (q.expand(2, 2, 4, 16), k, k, sums), {}),
        ("torch.float64", (q, k, k, sums.float()), {}),
        ("length is 10", (q, k, k, sums), {"length": torch.full((1,), 10, dtype=torch.int32)}),
    ):
        with pytest.raises(ValueError, match=words):
            forgetting_attention_cached(*given, **options)
