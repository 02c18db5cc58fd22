"""Tight pruning keeps what it promises, drops all that "auto" drops and more, and equals its rule written down pair by pair."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.forgetting_attention import forgetting_attention, norm_logit_bound, pruning_threshold, skipped_tiles
from kernels.forgetting_attention.pruning.threshold import pruned_tiles
from kernels.forgetting_attention.pruning.tight import MARGIN, tight_tiles
from kernels.forgetting_attention.visibility import first_visible_key
from tests.kernels.forgetting_attention.oracle import cumulative, make_case, output_and_gradients, visible_pairs

LIMITS: dict[str, dict[str, Any]] = {
    "none": {},
    "window": {"window_size": 37},
    "padding": {"seq_start": torch.tensor([0, 90])},
    "documents": {"cu_seqlens": torch.tensor([0, 1, 70, 200])},
}


def dropped_by_rule(
    q: Tensor, k: Tensor, log_fgate: Tensor, scale: float, log_tolerance: float, tile: int, **limits: Any
) -> Tensor:
    """(B, H, M), from all pairs in float64, tile by tile and from the last to the first."""
    (B, Q, H, _), T = q.shape, k.shape[1]
    key = k.double().transpose(1, 2).repeat_interleave(H // k.shape[2], 1)
    query, cum = q.double().transpose(1, 2), cumulative(log_fgate)
    seen = visible_pairs(log_fgate, Q, **limits)
    logits = query @ key.transpose(2, 3) * scale
    found = torch.zeros(B, H, math.ceil(Q / tile), dtype=torch.int32)
    for b in range(B):
        for h in range(H):
            need, largest = math.inf, 0.0
            for m in reversed(range(found.shape[2])):
                for i in range(m * tile, min(m * tile + tile, Q)):
                    position, half = i + T - Q, max(tile // 2, 1)
                    newest = [j for j in range(i // half * half + T - Q - half, position + 1) if j >= 0 and seen[b, h, i, j]]
                    largest = max(largest, float(query[b, h, i].norm()))
                    if newest:
                        terms = logits[b, h, i, newest] - cum[b, h, newest]
                        need = min(need, float(terms.logsumexp(0)))
                for n in range((m * tile + T - Q) // tile):
                    before = slice(0, n * tile + tile)
                    bound = scale * largest * float(key[b, h, before].norm(dim=-1).max())
                    if float((-cum[b, h, before]).logsumexp(0)) + bound < need + log_tolerance - MARGIN:
                        found[b, h, m] = n + 1
    return found


def lost_shares(q: Tensor, k: Tensor, log_fgate: Tensor, scale: float, count: Tensor, tile: int, **limits: Any) -> Tensor:
    """(B, H, Q): which share of its probability each row loses, float64."""
    Q, T, H = q.shape[1], k.shape[1], q.shape[2]
    key = k.double().transpose(1, 2).repeat_interleave(H // k.shape[2], 1)
    cum, seen = cumulative(log_fgate), visible_pairs(log_fgate, Q, **limits)
    logits = q.double().transpose(1, 2) @ key.transpose(2, 3) * scale + cum[..., T - Q :, None] - cum[..., None, :]
    weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    dropped = torch.arange(T) < (count.repeat_interleave(tile, -1)[..., :Q] * tile)[..., None]
    return weights.where(dropped, 0.0).sum(-1)


def tiles(case: Any, tile: int, log_tolerance: float = -10.0, scale: float = 0.25, **limits: Any) -> Tensor:
    first = first_visible_key(case.log_fgate, case.q.shape[1], **limits)
    return tight_tiles(case.q, case.k, cumulative(case.log_fgate), first, scale, log_tolerance, tile)


@pytest.mark.parametrize("gates", ["near_zero", "one", "mixture", "cuts"])
@pytest.mark.parametrize(("limits", "Q"), [("none", 75), ("window", 200), ("padding", 75), ("documents", 200)])
def test_equals_the_rule_pair_by_pair(gates: str, limits: str, Q: int) -> None:
    case = make_case(gates, 1 if limits == "documents" else 2, Q, 200, 2, 1, 16, torch.float32)
    given = {name.replace("seq_start", "seq_start_B"): x for name, x in LIMITS[limits].items()}
    found = tiles(case, 16, scale=0.4, **given)
    rule = case.q, case.k, case.log_fgate, 0.4
    torch.testing.assert_close(found, dropped_by_rule(*rule, -10.0, 16, **LIMITS[limits]))
    assert gates == "near_zero" or bool((found > 0).any())
    assert float(lost_shares(*rule, found, 16, **LIMITS[limits]).max()) < math.exp(-10)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    size=st.sampled_from([0.1, 1.0, 3.0, 10.0]),
    decay=st.sampled_from([0.03, 0.3, 3.0, 300.0]),
    tile=st.sampled_from([1, 4, 8]),
    log_tolerance=st.sampled_from([-1.0, -5.0, -10.0]),
)
def test_no_row_loses_more_than_promised(seed: int, size: float, decay: float, tile: int, log_tolerance: float) -> None:
    """And all that "auto" drops is dropped."""
    case = make_case("one", 1, 64, 64, 2, 2, 16, torch.float32, seed=seed)
    case = case._replace(q=case.q * size, k=case.k * size, log_fgate=decay * (case.log_fgate + 0.5))
    found = tiles(case, tile, log_tolerance)
    assert float(lost_shares(case.q, case.k, case.log_fgate, 0.25, found, tile).max()) < math.exp(log_tolerance)
    assert bool((found.diff(dim=-1) >= 0).all())  # a prefix that never gets shorter
    threshold = pruning_threshold(norm_logit_bound(case.q, case.k, 0.25), 64, log_tolerance - 2 * MARGIN)
    assert bool((found >= pruned_tiles(cumulative(case.log_fgate), 64, torch.as_tensor(threshold), tile)).all())


def test_drops_more_than_auto_and_changes_as_little() -> None:
    """A head that reaches a few tiles back: "auto" leaves most of them, tight fewer, and no number shows it."""
    case = make_case("zero", 1, 1100, 1100, 2, 2, 16, torch.float32)
    case = case._replace(log_fgate=torch.full_like(case.log_fgate, -0.05))
    of = lambda rule: skipped_tiles(case.q, case.k, case.log_fgate, adaptive_threshold=rule)  # noqa: E731
    assert torch.equal(of("tight"), tiles(case, 128))
    assert int(of("tight").sum()) > int(of("auto").sum()) > 0
    whole = output_and_gradients(forgetting_attention, case)
    for x, y in zip(whole, output_and_gradients(forgetting_attention, case, adaptive_threshold="tight"), strict=True):
        assert float((x - y).abs().max()) < 3e-4 * float(x.abs().max())


def test_a_lax_tolerance_shows() -> None:
    """It is used: with logits near 0 the bound is nearly what is lost, and half of the probability shows."""
    case = make_case("zero", 1, 700, 700, 1, 1, 16, torch.float32)
    case = case._replace(q=1e-3 * case.q, log_fgate=torch.full_like(case.log_fgate, -0.005))
    lax, whole = (forgetting_attention(*case[:4], adaptive_threshold="tight", log_tolerance=x) for x in (-0.7, -10.0))
    assert float((lax - whole).abs().max()) > 1e-2


def test_a_single_query_takes_auto() -> None:
    """With a tolerance at which two queries would lose what shows, and one to "auto" nothing."""
    case = make_case("zero", 2, 2, 700, 2, 1, 16, torch.float32)
    case = case._replace(q=1e-3 * case.q, log_fgate=torch.full_like(case.log_fgate, -0.01))
    for queries in (1, 2):
        given = (case.q[:, :queries], *case[1:4])
        auto, tight = (forgetting_attention(*given, adaptive_threshold=x, log_tolerance=-0.7) for x in ("auto", "tight"))
        assert torch.equal(auto, tight) is (queries == 1)
