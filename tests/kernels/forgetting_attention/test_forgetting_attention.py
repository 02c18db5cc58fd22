"""The CPU path of the operator against the float64 oracle, and the identities that forgetting attention must obey."""

import math
import sys
from functools import partial
from inspect import Parameter, signature
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter
from torch.nn.functional import logsigmoid, scaled_dot_product_attention

from kernels.forgetting_attention import (
    forgetting_attention,
    interface,
    pruned_tile_share,
    qk_norm_logit_bound,
    reference_attention,
)
from kernels.forgetting_attention.chunked import chunked_backward, chunked_forward
from kernels.forgetting_attention.pruning.threshold import norm_logit_bound, pruned_tiles, pruning_threshold
from kernels.forgetting_attention.visibility import TILE, cumulative_log_gate, first_visible_key
from tests.kernels.forgetting_attention.oracle import GATES, assert_right, attend, make_case, output_and_gradients


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize(
    ("Q", "T"), [(1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (127, 127), (1, 100), (70, 200), (300, 300)]
)
def test_chunked_matches_float64(Q: int, T: int, gates: str) -> None:
    assert_right(forgetting_attention, make_case(gates, 2, Q, T, 2, 1, 16, torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("D", [16, 32, 64, 128])
def test_chunked_matches_float64_for_every_size_and_dtype(D: int, dtype: torch.dtype) -> None:
    assert_right(forgetting_attention, make_case("mixture", 1, 150, 260, 4, 2, D, dtype))


@pytest.mark.parametrize("T", [1000, 2048])
def test_chunked_matches_float64_when_long(T: int) -> None:
    assert_right(forgetting_attention, make_case("mixture", 1, T, T, 1, 1, 16, torch.float32))


def test_gradcheck() -> None:
    case = make_case("one", 1, 5, 9, 2, 1, 16, torch.float64)
    inputs = [x.requires_grad_() for x in case[:4]]
    assert torch.autograd.gradcheck(lambda *x: forgetting_attention(*x), inputs)


@settings(max_examples=25)
@given(
    T=st.integers(1, 200),
    data=st.data(),
    gates=st.sampled_from(GATES),
    window=st.one_of(st.none(), st.integers(1, 250)),
    seed=st.integers(0, 10_000),
)
def test_limits_on_the_left_agree_with_the_oracle(
    T: int, data: st.DataObject, gates: str, window: int | None, seed: int
) -> None:
    Q = data.draw(st.integers(1, T))
    seq_start = torch.tensor(data.draw(st.lists(st.integers(0, T), min_size=2, max_size=2)))
    case = make_case(gates, 2, Q, T, 2, 2, 16, torch.float32, seed=seed)
    assert_right(forgetting_attention, case, seq_start=seq_start, window_size=window)


@settings(max_examples=10)
@given(
    inner=st.sets(st.integers(1, 299), max_size=6),
    window=st.one_of(st.none(), st.integers(1, 200)),
    threshold=st.one_of(st.none(), st.floats(-20.0, 0.0)),
    seed=st.integers(0, 10_000),
)
def test_documents_and_pruning_agree_with_the_oracle(
    inner: set[int], window: int | None, threshold: float | None, seed: int
) -> None:
    case = make_case("near_zero" if seed % 2 else "one", 1, 300, 300, 2, 2, 16, torch.float32, seed=seed)
    boundaries = torch.tensor([0, *sorted(inner), 300])
    options = {"cu_seqlens": boundaries, "window_size": window, "adaptive_threshold": threshold}
    assert_right(forgetting_attention, case, **options)


def test_readable_reference_agrees_with_the_oracle() -> None:
    case = make_case("cuts", 2, 60, 90, 2, 1, 16, torch.float32)
    seq_start = torch.tensor([3, 40])
    first_key = first_visible_key(case.log_fgate, 60, seq_start, None, 20)
    found = output_and_gradients(reference_attention, case, first_key_BHQ=first_key)
    expected = output_and_gradients(attend, case, seq_start=seq_start, window_size=20)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("window", [90, 2**31 - 1, 2**31, 2**31 + 5, 2**32 + 10, sys.maxsize])
def test_a_window_of_all_keys_is_none(window: int) -> None:
    case = make_case("near_zero", 1, 60, 90, 2, 2, 16, torch.float32)
    for backend in ("chunked", "reference"):
        expected = forgetting_attention(*case[:4], backend=backend)
        assert torch.equal(forgetting_attention(*case[:4], backend=backend, window_size=window), expected)


def test_packed_documents_equal_separate_ones() -> None:
    case = make_case("mixture", 1, 150, 150, 2, 2, 16, torch.float32)
    packed = forgetting_attention(*case[:4], cu_seqlens=torch.tensor([0, 40, 41, 150]))
    parts = [forgetting_attention(*(x[:, a:b] for x in case[:4])) for a, b in ((0, 40), (40, 41), (41, 150))]
    torch.testing.assert_close(packed, torch.cat(parts, dim=1))
    empty_too = torch.tensor([0, 0, 40, 41, 41, 41, 150, 150])
    for backend in ("chunked", "reference"):
        found = forgetting_attention(*case[:4], cu_seqlens=empty_too, backend=backend)
        torch.testing.assert_close(found, packed)


def test_left_padding_equals_the_unpadded_sequence_and_ignores_nan_free_padding() -> None:
    case = make_case("mixture", 2, 90, 90, 2, 2, 16, torch.float32)
    o = forgetting_attention(*case[:4], seq_start=torch.tensor([0, 33]))
    torch.testing.assert_close(o[1:, 33:], forgetting_attention(*(x[1:, 33:] for x in case[:4])))
    assert bool((o[1, :33] == 0).all())


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_values_of_padding_may_be_anything(backend: str) -> None:
    """The row beside has none, so that a block of queries reads them."""
    case = make_case("mixture", 2, 70, 90, 2, 1, 16, torch.float32)
    attention = partial(forgetting_attention, seq_start=torch.tensor([0, 33]), backend=backend)
    expected = output_and_gradients(attention, case)
    case.v[1, :20], case.v[1, 20:33] = torch.nan, torch.inf
    assert all(torch.equal(x, y) for x, y in zip(output_and_gradients(attention, case), expected, strict=True))


# Identities of claims.md, section H.


def test_open_gates_give_softmax_attention() -> None:  # I1
    case = make_case("zero", 2, 130, 130, 2, 2, 32, torch.float32)
    q, k, v = (x.transpose(1, 2) for x in case[:3])
    expected = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(forgetting_attention(*case[:4]), expected)


def test_constant_gates_give_alibi() -> None:  # I2
    T, H = 130, 8
    case = make_case("zero", 1, T, T, H, H, 16, torch.float64)
    slopes = 2.0 ** -torch.arange(1, H + 1, dtype=torch.float64)
    position = torch.arange(T, dtype=torch.float64)
    bias = -slopes[:, None, None] * (position[:, None] - position).clamp(min=0)
    bias = bias.masked_fill(position > position[:, None], -torch.inf)
    q, k, v = (x.transpose(1, 2) for x in case[:3])
    expected = scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
    torch.testing.assert_close(forgetting_attention(*case[:3], (-slopes).expand(1, T, H)), expected)
    decay_time = 1 / slopes
    assert (decay_time[0], decay_time[-1]) == (2, 256)


def test_the_first_gate_never_matters() -> None:  # I3
    case = make_case("one", 1, 80, 80, 2, 2, 16, torch.float32)
    other = case.log_fgate.clone()
    other[:, 0] -= 3.0
    torch.testing.assert_close(forgetting_attention(*case[:3], other), forgetting_attention(*case[:4]))
    assert bool((output_and_gradients(forgetting_attention, case)[4][:, 0] == 0).all())


def test_softmax_form_is_the_recurrent_form() -> None:  # I4
    q, k, v, log_fgate, _ = make_case("one", 1, 40, 40, 2, 2, 16, torch.float64)
    numerator, denominator = [], []
    weight = torch.zeros(1, 2, 0, dtype=torch.float64)  # F_ij of the keys so far
    for i in range(40):
        weight = torch.cat([weight * log_fgate[:, i].exp()[..., None], torch.ones(1, 2, 1)], -1)
        score = weight * (torch.einsum("bhd,bjhd->bhj", q[:, i], k[:, : i + 1]) / 4.0).exp()
        numerator.append(torch.einsum("bhj,bjhd->bhd", score, v[:, : i + 1]))
        denominator.append(score.sum(-1, keepdim=True))
    expected = torch.stack(numerator, 1) / torch.stack(denominator, 1)
    torch.testing.assert_close(forgetting_attention(q, k, v, log_fgate), expected)


def test_gate_gradient_is_the_sum_of_row_minus_column_sums() -> None:  # I5
    case = make_case("one", 1, 30, 30, 1, 1, 16, torch.float64)
    q, k, v, log_fgate, do = case
    cum = log_fgate[0, :, 0].cumsum(0)
    decay = (cum[:, None] - cum).requires_grad_()
    logits = (q[0, :, 0] @ k[0, :, 0].T / 4.0 + decay).masked_fill(torch.ones(30, 30).triu(1).bool(), -torch.inf)
    o = logits.softmax(-1) @ v[0, :, 0]
    (dlogits,) = torch.autograd.grad(o, decay, do[0, :, 0])
    expected = (dlogits.sum(1) - dlogits.sum(0)).flip(0).cumsum(0).flip(0)
    torch.testing.assert_close(output_and_gradients(forgetting_attention, case)[4][0, :, 0], expected)


def test_token_by_token_equals_parallel() -> None:  # I6, the attention's part
    q, k, v, log_fgate, _ = make_case("mixture", 2, 40, 40, 2, 1, 16, torch.float32)
    steps = [forgetting_attention(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1], log_fgate[:, : t + 1]) for t in range(40)]
    torch.testing.assert_close(torch.cat(steps, 1), forgetting_attention(q, k, v, log_fgate))


@pytest.mark.parametrize("gates", ["one", "twenty", "mixture"])
def test_pruning_drops_little_and_a_prefix(gates: str) -> None:  # I7, I8
    T = 1024
    case = make_case(gates, 1, T, T, 2, 2, 16, torch.float32)
    q, k, v, log_fgate, _ = case
    threshold = pruning_threshold(norm_logit_bound(q, k, 0.25), T)
    cum = cumulative_log_gate(log_fgate)
    dropped = pruned_tiles(cum, T, threshold)
    assert bool((dropped.diff(dim=-1) >= 0).all())
    # Exactly the tiles whose largest D (first query, last key) is below the threshold.
    largest = cum[..., ::128][..., :, None] - cum[..., 127::128][..., None, :]
    causal = torch.ones(T // 128, T // 128).tril(-1).bool()
    expected = ((largest < threshold[..., None, None]) & causal).sum(-1)
    assert torch.equal(dropped.long(), expected)
    assert dropped.sum() > 0
    share = pruned_tile_share(log_fgate, threshold)
    torch.testing.assert_close(share, dropped.sum(-1) / 36.0)

    logits = torch.einsum("bqhd,bthd->bhqt", q, k) / 4.0 + (cum[..., :, None] - cum[..., None, :])
    weights = logits.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)
    is_dropped = torch.arange(T) < dropped.repeat_interleave(128, -1)[..., None] * 128
    assert weights.masked_fill(~is_dropped, 0.0).sum(-1).max() < math.exp(-10)
    gap = forgetting_attention(*case[:4], adaptive_threshold="auto") - forgetting_attention(*case[:4])
    assert gap.abs().max() <= 2 * math.exp(-10) * v.norm(dim=-1).max()


def test_the_threshold_is_the_papers() -> None:
    """delta = -2 U - log L + log eps with eps = e^-10 (ACP)."""
    assert pruning_threshold(3.0, 1024) == pytest.approx(-6.0 - math.log(1024) - 10.0)
    assert pruning_threshold(3.0, 1024, -2.0) == pytest.approx(-6.0 - math.log(1024) - 2.0)


def test_no_threshold_drops_the_tile_of_the_query_itself() -> None:
    case = make_case("one", 1, 200, 300, 2, 2, 16, torch.float32)
    counts = pruned_tiles(cumulative_log_gate(case.log_fgate), 200, torch.full((1, 2), 1e6))
    assert counts.tolist() == [[[0, 1]] * 2], "queries 100 and 228 lie in the keys' first and second tile"


def test_pruning_with_too_high_a_threshold_changes_the_output() -> None:
    """The threshold is used: one that drops tiles that matter must show."""
    case = make_case("near_zero", 1, 512, 512, 1, 1, 16, torch.float32)
    gap = forgetting_attention(*case[:4], adaptive_threshold=-1e-3) - forgetting_attention(*case[:4])
    assert gap.abs().max() > 1e-2


@pytest.mark.parametrize("cut", [0, 1, 50, 64, 128, 199])
def test_a_zero_gate_erases_the_past(cut: int) -> None:  # I10
    case = make_case("one", 1, 200, 200, 2, 2, 16, torch.float32)
    case.log_fgate[:, cut] = -torch.inf
    o = forgetting_attention(*case[:4])
    torch.testing.assert_close(o[:, cut:], forgetting_attention(*(x[:, cut:] for x in case[:4])))
    gradients = output_and_gradients(forgetting_attention, case)
    assert all(bool(x.isfinite().all()) for x in gradients)


def test_a_small_gate_is_no_cut() -> None:
    """A key that is e^100 times as likely as all others outlasts a gate of e^-50, and one of e^-1500 a gap of e^1600."""
    for decay, lead in ((50.0, 100.0), (1500.0, 1600.0)):
        case = make_case("zero", 1, 200, 200, 1, 1, 16, torch.float32)
        case.q.zero_()[..., 0] = 4.0
        case.k.zero_()[:, 5, :, 0] = lead
        case.log_fgate[:, 100] = -decay
        o = forgetting_attention(*case[:4])
        torch.testing.assert_close(o[:, 100:], case.v[:, 5:6].expand(-1, 100, -1, -1))


def test_decay_over_65536_tokens_beats_a_float32_sum() -> None:
    T, window = 65_536, 64
    log_fgate = -torch.rand(1, T, 1, generator=torch.Generator().manual_seed(0)) * 1.5
    exact = log_fgate.double().cumsum(1)[0, :, 0]
    pairs = exact[window:] - exact[:-window]
    naive = log_fgate.cumsum(1)[0, :, 0]
    ours = cumulative_log_gate(log_fgate)[0, 0]
    naive_error = ((naive[window:] - naive[:-window]).double() - pairs).abs().max()
    our_error = ((ours[window:] - ours[:-window]).float().double() - pairs).abs().max()
    assert our_error < 1e-5 < 1e-3 < naive_error


def test_logit_bounds_hold() -> None:
    q, k, *_ = make_case("one", 2, 50, 70, 4, 2, 32, torch.float32)
    logits = torch.einsum("bqhd,bthd->bhqt", q, k.repeat_interleave(2, 2)) * 32**-0.5
    assert bool((logits.abs().amax((-1, -2)) <= norm_logit_bound(q, k, 32**-0.5)).all())
    rounded = q.bfloat16(), k.bfloat16()  # the bound is not
    assert torch.equal(norm_logit_bound(*rounded, 32**-0.5), norm_logit_bound(*(x.float() for x in rounded), 32**-0.5))
    q_weight, k_weight = torch.randn(4, 32), torch.randn(32)
    normed_q = torch.nn.functional.rms_norm(q, (32,)) * q_weight
    normed_k = torch.nn.functional.rms_norm(k, (32,)) * k_weight
    logits = torch.einsum("bqhd,bthd->bhqt", normed_q, normed_k.repeat_interleave(2, 2)) * 32**-0.5
    assert bool((logits.abs().amax((-1, -2)) <= qk_norm_logit_bound(q_weight, k_weight, 32)).all())


@pytest.mark.parametrize("rule", ["qk_norm", "auto"])
@pytest.mark.parametrize("roundings", [1, 2])
def test_pruning_keeps_its_promise_of_rounded_queries_and_keys(rule: str, roundings: int) -> None:
    """The worst case: all old keys have logit U and D just below the threshold, the query's own has logit -U."""
    T, D, log_tolerance = 2048, 64, -10.0
    weight = torch.full((D,), 2.0079)  # bf16 rounds it up by nearly half a unit
    k = weight.bfloat16().expand(1, T, 1, D).clone()
    k[:, -TILE:] *= -1
    q = weight.bfloat16().expand(1, T, 1, D)
    if roundings == 2:  # as a rotation by a small angle would: one unit more in half of the numbers, within their norm
        weight = weight / (1 + 2**-8)
    bound = qk_norm_logit_bound(weight, weight, D, torch.bfloat16, roundings) if rule == "qk_norm" else None
    bound = norm_logit_bound(q, k, D**-0.5) if bound is None else bound
    threshold = torch.as_tensor(pruning_threshold(bound, T, log_tolerance)).reshape(1, 1)
    log_fgate = torch.zeros(1, T, 1)
    log_fgate[:, -TILE] = torch.nextafter(threshold, torch.tensor(-torch.inf))
    cum_BHT = cumulative_log_gate(log_fgate)
    tiles = pruned_tiles(cum_BHT, T, threshold)
    assert tiles[0, 0, -1] == T // TILE - 1, "all but the query's own tile are skipped"
    row = T - TILE
    logits = (q[0, row, 0].double() @ k[0, : row + 1, 0].double().T) * D**-0.5 + cum_BHT[0, 0, row] - cum_BHT[0, 0, : row + 1]
    lost = logits[:row].logsumexp(0) - logits.logsumexp(0)
    assert log_tolerance - 0.3 < lost < log_tolerance


def test_float64_is_pruned_like_float32() -> None:
    case = make_case("one", 1, 300, 300, 2, 1, 16, torch.float64)
    log_fgate = case.log_fgate.float() - 1.0
    wide, narrow = (
        forgetting_attention(*(x.to(dtype) for x in (case.q, case.k, case.v)), log_fgate, adaptive_threshold="auto")
        for dtype in (torch.float64, torch.float32)
    )
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), narrow)
    case.v[:, 0] = 1e300  # beside a weight of e^-540 or so
    whole = forgetting_attention(case.q, case.k, case.v, log_fgate)
    pruned = forgetting_attention(case.q, case.k, case.v, log_fgate, adaptive_threshold="auto")
    assert whole[:, -1].abs().min() > 1e9 > pruned[:, -1].abs().max(), "the first key was skipped"


# How it behaves among PyTorch's own features.


def test_works_under_compile_checkpoint_and_autocast() -> None:
    case = make_case("one", 1, 60, 60, 2, 1, 16, torch.float32)
    expected = output_and_gradients(forgetting_attention, case)
    compiled = torch.compile(lambda *x: forgetting_attention(*x), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(output_and_gradients(compiled, case), expected)
    torch.testing.assert_close(
        output_and_gradients(lambda *x: torch.utils.checkpoint.checkpoint(forgetting_attention, *x, use_reentrant=False), case),
        expected,
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert forgetting_attention(*case[:4]).dtype == torch.bfloat16


def test_bounds_compile_once_for_all_lengths() -> None:
    """To the bit, for bounds of all heads and of one."""
    q, k, v, log_fgate, _ = make_case("twenty", 1, 300, 300, 2, 2, 16, torch.float32)
    bounds = torch.tensor([3.7, 0.1]), torch.tensor(3.7)

    def function(*x: torch.Tensor) -> list[Any]:
        o = forgetting_attention(*x, adaptive_threshold="auto")
        return [o, *(pruning_threshold(bound, x[0].shape[1]) for bound in bounds)]

    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for length in (299, 250, 131, 7):
        given = [x[:, :length] for x in (q, k, v, log_fgate)]
        assert all(torch.equal(x, y) for x, y in zip(compiled(*given), function(*given), strict=True))
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_without_a_bound_nothing_is_pruned(backend: str) -> None:
    """A key that is no number: it is padding, or what sees it is no number either."""
    q, k, v, log_fgate, _ = make_case("one", 2, 300, 300, 2, 1, 16, torch.float32)
    k[0, 3], k[1, 299] = torch.nan, torch.nan
    of = partial(forgetting_attention, q, k, v, log_fgate, seq_start=torch.tensor([10, 0]), backend=backend)
    o = of(adaptive_threshold="auto")
    assert torch.equal(o.nan_to_num(7.0), of().nan_to_num(7.0)) and bool(o[0].isfinite().all() & o[1, :299].isfinite().all())


def test_operator_passes_opcheck() -> None:
    q, k, v, log_fgate, _ = make_case("one", 1, 20, 30, 2, 1, 16, torch.float32)
    inputs = [x.requires_grad_() for x in (q, k, v, log_fgate)]
    operator = torch.ops.kernels_forgetting_attention.forward.default
    for tolerance in (None, -10.0):
        torch.library.opcheck(operator, (*inputs, None, tolerance, None, None, None, 0.25, False, "chunked"))


def test_everything_is_made_where_the_inputs_are() -> None:
    q, k, v, log_fgate, *_ = make_case("mixture", 1, 130, 130, 2, 2, 16, torch.float32)
    with torch.device("meta"):  # what names no device would have no content
        cum_BHT, first_key_BHQ = cumulative_log_gate(log_fgate), first_visible_key(log_fgate, 130)
        o, lse = chunked_forward(q, k, v, cum_BHT, first_key_BHQ, 0.25)
        gradients = chunked_backward(q, q, k, v, o, lse, cum_BHT, first_key_BHQ, 0.25)
    assert torch.equal(o, forgetting_attention(q, k, v, log_fgate, scale=0.25))
    assert all(x.device.type == "cpu" for x in gradients)


def test_any_strides_give_the_same() -> None:
    case = make_case("mixture", 2, 70, 70, 2, 2, 16, torch.float32)
    expected = forgetting_attention(*case[:4])
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in case[:4]]
    torch.testing.assert_close(forgetting_attention(*heads_first), expected)
    fused = torch.stack(case[:3], dim=3).unbind(3)
    torch.testing.assert_close(forgetting_attention(*fused, case.log_fgate), expected)


def test_reference_equals_chunked_for_log_sigmoid_gates() -> None:
    q, k, v, log_fgate, _ = make_case("one", 1, 90, 90, 2, 2, 16, torch.float32)
    log_fgate = logsigmoid(log_fgate)
    torch.testing.assert_close(forgetting_attention(q, k, v, log_fgate), reference_attention(q, k, v, log_fgate))


LENGTH = 258
OPTIONS: tuple[dict[str, Any], ...] = (
    {"scale": 0.3},
    {"adaptive_threshold": -1.0},
    {"adaptive_threshold": "tight", "log_tolerance": -0.01},
    {"seq_start": torch.tensor([40])},
    {"cu_seqlens": torch.tensor([0, 100, LENGTH])},
    {"window_size": 130},
    {"deterministic": False},
)
"""Values of every option that show in the output, but for the last."""


def assert_heeds_or_refuses_every_option(*backends: str) -> None:
    """Compare each backend with the reference: a path that lacks an option must raise ValueError, not leave it out."""
    for queries in (LENGTH, 1):
        case = make_case("one", 1, queries, LENGTH, 1, 1, 16, torch.float32)
        inputs = (*case[:3], torch.full((1, LENGTH, 1), -0.08))  # so open that what is left out would show
        plain = forgetting_attention(*inputs, backend="reference")
        for options in OPTIONS:
            if queries == 1 and options.keys() & {"cu_seqlens", "adaptive_threshold"}:
                continue  # refused for every backend, and pruned in other steps in decoding
            expected = forgetting_attention(*inputs, backend="reference", **options)
            if queries > 1 and "deterministic" not in options:
                assert not torch.equal(plain, expected), options
            for backend in backends:
                try:
                    found = forgetting_attention(*inputs, backend=backend, **options)
                except ValueError as error:
                    refusal = str(error)
                    assert repr(backend) in refusal and any(f"{name} " in refusal for name in options)
                else:
                    torch.testing.assert_close(found, expected)


def test_every_option_is_heeded_or_refused() -> None:
    named = {name for name, each in signature(forgetting_attention).parameters.items() if each.kind is Parameter.KEYWORD_ONLY}
    assert named - {"backend"} == {name for options in OPTIONS for name in options}, "give each option a value in OPTIONS"
    assert_heeds_or_refuses_every_option("chunked")


def test_backend_reference_is_the_readable_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("one", 2, 300, 300, 2, 1, 16, torch.float32)
    starts = {"seq_start": torch.tensor([0, 40])}
    pruned = {"adaptive_threshold": -3.0}, {"adaptive_threshold": "tight"}
    for options in ({}, starts, {"window_size": 130}, *pruned):
        named = output_and_gradients(partial(forgetting_attention, backend="reference", **options), case)
        chunked = output_and_gradients(partial(forgetting_attention, backend="chunked", **options), case)
        torch.testing.assert_close(named, chunked)
        assert torch.equal(forgetting_attention(*case[:4], **options), chunked[0])  # what a CPU runs
    monkeypatch.setattr(interface, "reference_attention", lambda *inputs, **options: inputs[0])
    assert forgetting_attention(*case[:4], backend="reference") is case.q


# Bad input: the message names the argument, its value and what is allowed.


def _bad_inputs() -> list[tuple[str, dict[str, object]]]:
    nan_gate = torch.full((2, 8, 2), float("nan"))
    return [
        (r"q has shape \(2, 8, 32\)", {"q": torch.zeros(2, 8, 32)}),
        (r"q has head dimension 24", {"q": torch.zeros(2, 8, 2, 24), "k": torch.zeros(2, 8, 2, 24)}),
        (r"no dimension may be empty", {"q": torch.zeros(0, 8, 2, 16)}),
        (r"q has 9 positions and k 8", {"q": torch.zeros(2, 9, 2, 16)}),
        (r"k has shape \(3, 8, 2, 16\)", {"k": torch.zeros(3, 8, 2, 16)}),
        (r"v has shape \(2, 7, 2, 16\)", {"v": torch.zeros(2, 7, 2, 16)}),
        (r"q has 2 heads and k 3", {"k": torch.zeros(2, 8, 3, 16), "v": torch.zeros(2, 8, 3, 16)}),
        (r"log_fgate has shape \(2, 8, 1\)", {"log_fgate": torch.zeros(2, 8, 1)}),
        (r"log_fgate has dtype torch.bfloat16", {"log_fgate": torch.zeros(2, 8, 2, dtype=torch.bfloat16)}),
        (r"log_fgate reaches 0.5", {"log_fgate": torch.full((2, 8, 2), 0.5)}),
        (r"log_fgate reaches inf", {"log_fgate": nan_gate}),
        (r"q has dtype torch.int32", {"q": torch.zeros(2, 8, 2, 16, dtype=torch.int32)}),
        (r"k has dtype torch.bfloat16", {"k": torch.zeros(2, 8, 2, 16, dtype=torch.bfloat16)}),
        (r"v is on meta", {"v": torch.zeros(2, 8, 2, 16, device="meta")}),
        (r"seq_start is \[0, 9\]", {"seq_start": torch.tensor([0, 9])}),
        (r"seq_start is \(1,\)", {"seq_start": torch.tensor([0])}),
        (r"cu_seqlens needs one packed sequence", {"cu_seqlens": torch.tensor([0, 8])}),
        (r"window_size is 0", {"window_size": 0}),
        (r"backend is 'cuda'", {"backend": "cuda"}),
        (r"backend 'triton' needs CUDA", {"backend": "triton"}),
        (r"adaptive_threshold is 'always'", {"adaptive_threshold": "always"}),
        (r"adaptive_threshold is False; it must be None, a float", {"adaptive_threshold": False}),
        (r"adaptive_threshold is True; it must be None, a float", {"adaptive_threshold": True}),
        (r"adaptive_threshold is 1.0", {"adaptive_threshold": 1.0}),
        (r"adaptive_threshold reaches 5.0", {"adaptive_threshold": torch.tensor([-1.0, 5.0])}),
        (r"adaptive_threshold reaches inf", {"adaptive_threshold": torch.full((2, 2), float("nan"))}),
        (r"adaptive_threshold has shape \(3,\)", {"adaptive_threshold": torch.zeros(3)}),
        (r"adaptive_threshold is \[-3.0, -4.0\]; it must be None, a float", {"adaptive_threshold": [-3.0, -4.0]}),
        (r"q is of type ndarray; it must be a torch.Tensor", {"q": torch.zeros(2, 8, 2, 16).numpy()}),
        (r"log_fgate is of type list", {"log_fgate": [0.0]}),
        (r"seq_start is of type list; it must be a torch.Tensor", {"seq_start": [0, 1]}),
        (r"cu_seqlens is of type list", {"cu_seqlens": [0, 8]}),
        (r"window_size is True", {"window_size": True}),
        (r"scale is nan; it must be finite", {"scale": float("nan")}),
        (r"scale is -inf", {"scale": -float("inf")}),
        (r"scale requires a gradient, .* multiply q by it", {"scale": torch.tensor(0.1, requires_grad=True)}),
    ]


@pytest.mark.parametrize(("message", "change"), _bad_inputs(), ids=[m for m, _ in _bad_inputs()])
def test_bad_input_is_named(message: str, change: dict[str, object]) -> None:
    arguments: dict[str, object] = {n: torch.zeros(2, 8, 2, 16) for n in ("q", "k", "v")}
    arguments["log_fgate"] = torch.zeros(2, 8, 2)
    with pytest.raises(ValueError, match=message):
        forgetting_attention(**{**arguments, **change})  # type: ignore[arg-type]


def test_shares_of_nothing_are_refused() -> None:
    gates = torch.full((1, 300, 2), -1.0)
    for level, words in ((5.0, "adaptive_threshold reaches 5.0"), (torch.tensor([torch.nan, -1.0]), "adaptive_threshold")):
        with pytest.raises(ValueError, match=words):
            pruned_tile_share(gates, level)
    for queries in (0, -1, 301):
        with pytest.raises(ValueError, match=rf"num_queries is {queries}; it must be in 1\.\.300"):
            pruned_tile_share(gates, -5.0, num_queries=queries)


def test_packed_boundaries_out_of_range_are_named() -> None:
    q = torch.zeros(1, 8, 2, 16)
    with pytest.raises(ValueError, match=r"cu_seqlens is \[0, 9\]"):
        forgetting_attention(q, q, q, torch.zeros(1, 8, 2), cu_seqlens=torch.tensor([0, 9]))


@pytest.mark.parametrize(("dtype", "kept"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_what_is_kept_and_added_up_in_which_dtype(dtype: torch.dtype, kept: torch.dtype) -> None:
    """Gradients of the running sums of gates are float64: the sums over them must not lose the small terms."""
    q, k, v = (torch.randn(1, 70, heads, 16, generator=torch.Generator().manual_seed(0)).to(dtype) for heads in (2, 1, 1))
    cum = cumulative_log_gate(torch.full((1, 70, 2), -0.1))
    first_key = torch.zeros(1, 2, 70, dtype=torch.int32)
    o, lse = chunked_forward(q, k, v, cum, first_key, 0.25)
    gradients = chunked_backward(o, q, k, v, o, lse, cum, first_key, 0.25)
    assert [o.dtype, lse.dtype, cum.dtype] == [dtype, kept, torch.float64]
    assert [each.dtype for each in gradients] == [dtype, dtype, dtype, torch.float64]
