"""The CPU path of the operator against the float64 oracle, and the identities that stick-breaking attention must obey."""

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.stick_breaking import reference_attention, stick_breaking_attention
from kernels.stick_breaking.autograd import attend
from tests.kernels.stick_breaking.oracle import (
    REGIMES,
    Case,
    allowed_errors,
    assert_right,
    brute_force,
    errors,
    make_case,
    make_nearly_used_up,
    output_and_gradients,
)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("attend_current", [False, True])
def test_reference_is_the_product_form(regime: str, attend_current: bool) -> None:  # I9
    """Log space and product form agree, with their gradients; what the other tests hold on to is itself right."""
    case = make_case(regime, 1, 40, 50, 2, 1, 16, torch.float64)
    first_key = torch.arange(40)[None] // 3 + torch.tensor([[0] * 30 + [40] * 10])  # some queries see nothing
    options = {"attend_current": attend_current, "first_key_BQ": first_key}
    expected = output_and_gradients(lambda *x: brute_force(*x, **options), case)
    found = output_and_gradients(lambda *x: reference_attention(*x, **options), case)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("Q", "T"), [(1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (1, 100), (70, 200), (300, 300)])
def test_chunked_matches_float64(Q: int, T: int, regime: str) -> None:
    assert_right(stick_breaking_attention, make_case(regime, 2, Q, T, 2, 1, 16, torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("D", [16, 32, 64, 128])
def test_chunked_matches_float64_for_every_size_and_dtype(D: int, dtype: torch.dtype) -> None:
    case = make_case("sinks", 1, 150, 260, 4, 2, D, dtype)
    assert_right(lambda *x: stick_breaking_attention(*x, attend_current=True), case, attend_current=True)


@pytest.mark.parametrize("regime", ["long", "sinks", "huge"])
def test_chunked_matches_float64_when_long(regime: str) -> None:
    assert_right(stick_breaking_attention, make_case(regime, 1, 1000, 1000, 1, 1, 16, torch.float32))


@pytest.mark.parametrize(("regime", "Q"), [("random", 16_384), ("long", 200)])
def test_16384_tokens(regime: str, Q: int) -> None:
    """The end of a long sequence: its last queries and, as only they see them, its last keys."""
    T, tail = 16_384, 100
    case = make_case(regime, 1, Q, T, 1, 1, 16, torch.float32)
    last = Case(case.q[:, -tail:], case.k, case.v, case.do[:, -tail:], case.dr[:, -tail:])
    exact = output_and_gradients(reference_attention, last.to(torch.float64))
    allowed = allowed_errors(last, exact)
    found = output_and_gradients(stick_breaking_attention, case)
    assert all(bool(x.isfinite().all()) for x in found)
    gaps = errors([x[:, -tail:] for x in found], [x[:, -tail:] for x in exact])
    assert all(gap <= limit for gap, limit in zip(gaps, allowed, strict=True)), (gaps, allowed)


def test_gradcheck() -> None:
    case = make_case("random", 1, 5, 9, 2, 1, 16, torch.float64)
    inputs = [x.requires_grad_() for x in case[:3]]
    assert torch.autograd.gradcheck(lambda *x: stick_breaking_attention(*x), inputs)


@pytest.mark.parametrize("attend_current", [False, True])
@pytest.mark.parametrize("regime", REGIMES)
def test_weights_and_remainder_share_one_stick(regime: str, attend_current: bool) -> None:  # I9
    q, k, v, *_ = make_case(regime, 1, 200, 200, 2, 2, 16, torch.float32)
    total, remainder = stick_breaking_attention(q, k, torch.ones_like(v), attend_current=attend_current)
    torch.testing.assert_close(total + remainder[..., None], torch.ones_like(total), rtol=0, atol=2e-6)
    assert bool((remainder >= 0).all())
    if not attend_current:
        assert bool((total[:, 0] == 0).all()) and bool((remainder[:, 0] == 1).all())


def test_first_query_takes_its_own_value_only_if_it_may() -> None:
    case = make_case("random", 2, 3, 3, 2, 2, 16, torch.float64)
    q, k, v, *_ = case
    beta = torch.sigmoid((q[:, 0] * k[:, 0]).sum(-1) / 4.0)
    o, remainder = stick_breaking_attention(q, k, v, attend_current=True)
    torch.testing.assert_close(o[:, 0], beta[..., None] * v[:, 0])
    torch.testing.assert_close(remainder[:, 0], 1 - beta)
    assert all(bool(x.isfinite().all()) for x in output_and_gradients(stick_breaking_attention, case))


def test_equal_logits_decay_geometrically() -> None:  # S6
    T, logit = 60, -1.5
    q = torch.full((1, T, 1, 16), 1.0, dtype=torch.float64)
    k = torch.full((1, T, 1, 16), logit * 4.0 / 16, dtype=torch.float64)
    beta = torch.sigmoid(torch.tensor(logit, dtype=torch.float64))
    for one_hot in (0, 20, 43):
        v = torch.zeros(1, T, 1, 16, dtype=torch.float64)
        v[0, one_hot] = 1.0
        distance = torch.arange(T, dtype=torch.float64) - one_hot
        expected = torch.where(distance > 0, beta * (1 - beta) ** (distance - 1), 0.0)
        torch.testing.assert_close(stick_breaking_attention(q, k, v)[0][0, :, 0, 0], expected)


def test_order_matters_without_positions() -> None:  # S4
    q, k, v, *_ = make_case("random", 1, 1, 30, 1, 1, 16, torch.float64)
    shuffle = torch.randperm(29, generator=torch.Generator().manual_seed(1))
    shuffle = torch.cat([shuffle, torch.tensor([29])])
    o, remainder = stick_breaking_attention(q, k, v)
    shuffled, same_remainder = stick_breaking_attention(q, k[:, shuffle], v[:, shuffle])
    assert (o - shuffled).abs().max() > 0.1
    torch.testing.assert_close(remainder, same_remainder)


@pytest.mark.parametrize("attend_current", [False, True])
def test_the_future_is_never_read(attend_current: bool) -> None:
    q, k, v, *_ = make_case("long", 1, 150, 150, 2, 2, 16, torch.float32)
    o, remainder = stick_breaking_attention(q, k, v, attend_current=attend_current)
    hidden = 100 + int(attend_current)
    k[:, hidden:], v[:, hidden:] = 1e4, -1e30
    changed, changed_remainder = stick_breaking_attention(q, k, v, attend_current=attend_current)
    assert torch.equal(o[:, :101], changed[:, :101])
    assert torch.equal(remainder[:, :101], changed_remainder[:, :101])


def test_token_by_token_equals_parallel() -> None:
    q, k, v, *_ = make_case("sinks", 2, 40, 40, 2, 1, 16, torch.float32)
    steps = [stick_breaking_attention(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1]) for t in range(40)]
    o, remainder = stick_breaking_attention(q, k, v)
    torch.testing.assert_close(torch.cat([step[0] for step in steps], 1), o)
    torch.testing.assert_close(torch.cat([step[1] for step in steps], 1), remainder)


def test_packed_documents_equal_separate_ones() -> None:
    case = make_case("long", 1, 150, 150, 2, 2, 16, torch.float32)
    boundaries = torch.tensor([0, 40, 41, 150])
    packed = output_and_gradients(lambda *x: stick_breaking_attention(*x, cu_seqlens=boundaries), case)
    empty_too = torch.tensor([0, 0, 40, 41, 41, 41, 150, 150])
    same = output_and_gradients(lambda *x: stick_breaking_attention(*x, cu_seqlens=empty_too), case)
    assert all(torch.equal(x, y) for x, y in zip(packed, same, strict=True))
    parts = [
        output_and_gradients(stick_breaking_attention, Case(*(x[:, a:b] for x in case)))
        for a, b in itertools.pairwise(boundaries)
    ]
    for x, pieces in zip(packed, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(x, torch.cat(pieces, 1))


@settings(max_examples=20)
@given(T=st.integers(1, 200), data=st.data(), regime=st.sampled_from(REGIMES), seed=st.integers(0, 10_000))
def test_padding_agrees_with_the_oracle(T: int, data: st.DataObject, regime: str, seed: int) -> None:
    Q = data.draw(st.integers(1, T))
    seq_start = torch.tensor(data.draw(st.lists(st.integers(0, T), min_size=2, max_size=2)))
    case = make_case(regime, 2, Q, T, 2, 2, 16, torch.float32, seed=seed)
    first_key = seq_start[:, None].expand(2, Q)
    assert_right(lambda *x: stick_breaking_attention(*x, seq_start=seq_start), case, first_key_BQ=first_key)


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_values_of_padding_may_be_anything(backend: str) -> None:
    """The row beside has none, so that a block of queries reads them."""
    case = make_case("sinks", 2, 70, 90, 2, 1, 16, torch.float32)
    attention = partial(stick_breaking_attention, seq_start=torch.tensor([0, 33]), backend=backend)
    expected = output_and_gradients(attention, case)
    case.v[1, :20], case.v[1, 20:33] = torch.nan, torch.inf
    assert all(torch.equal(x, y) for x, y in zip(output_and_gradients(attention, case), expected, strict=True))


def test_used_up_sticks_are_skipped_and_others_are_not() -> None:
    q, k, v, *_ = make_case("even", 1, 1024, 1024, 1, 1, 16, torch.float32)
    oldest = attend(q, k, v, None, None, 0.25, False, "chunked")[2][0]
    assert oldest[-1] >= 1024 - 64 - 128 - 64  # one bit a key: 40 keys beyond the block's first query are enough
    q, k, v, *_ = make_case("long", 1, 1024, 1024, 1, 1, 16, torch.float32)
    assert bool((attend(q, k, v, None, None, 0.25, False, "chunked")[2][0] == 0).all())
    boundaries = torch.tensor([0, 500, 1024])
    assert attend(q, k, v, None, boundaries, 0.25, False, "chunked")[2][0][-1] == 500


def test_a_stick_is_not_used_up_too_soon() -> None:
    """Return what lies behind 128 keys weighs 2^-25 in all, but its values are large."""
    case = make_nearly_used_up(torch.float32, 20)
    exact = reference_attention(*case.to(torch.float64)[:3])[0]
    torch.testing.assert_close(stick_breaking_attention(*case[:3])[0].double(), exact, rtol=2e-5, atol=0)


# How it behaves among PyTorch's own features.


def test_works_under_compile_checkpoint_and_autocast() -> None:
    case = make_case("random", 1, 60, 60, 2, 1, 16, torch.float32)
    expected = output_and_gradients(stick_breaking_attention, case)
    compiled = torch.compile(lambda *x: stick_breaking_attention(*x), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(output_and_gradients(compiled, case), expected)
    torch.testing.assert_close(
        output_and_gradients(
            lambda *x: torch.utils.checkpoint.checkpoint(stick_breaking_attention, *x, use_reentrant=False), case
        ),
        expected,
    )
    with torch.autocast("cpu", torch.bfloat16):
        o, remainder = stick_breaking_attention(*case[:3])
    assert (o.dtype, remainder.dtype) == (torch.bfloat16, torch.float32)


def test_operator_passes_opcheck() -> None:
    q, k, v, *_ = make_case("random", 1, 20, 30, 2, 1, 16, torch.float32)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(torch.ops.kernels_stick_breaking.forward.default, (*inputs, None, None, 0.25, False, "chunked"))


def test_one_of_the_outputs_may_go_unused() -> None:
    case = make_case("long", 1, 80, 80, 2, 2, 16, torch.float32)
    inputs = [x.requires_grad_() for x in case[:3]]
    both = torch.autograd.grad(stick_breaking_attention(*inputs), inputs, case[3:])
    o = torch.autograd.grad(stick_breaking_attention(*inputs)[0], inputs, case.do)
    remainder = torch.autograd.grad(stick_breaking_attention(*inputs)[1], inputs, case.dr)
    for x, y, z in zip(both, o, remainder, strict=True):
        torch.testing.assert_close(x, y + z)


def test_any_strides_give_the_same() -> None:
    case = make_case("random", 2, 70, 70, 2, 2, 16, torch.float32)
    expected = stick_breaking_attention(*case[:3])
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in case[:3]]
    torch.testing.assert_close(stick_breaking_attention(*heads_first), expected)
    torch.testing.assert_close(stick_breaking_attention(*torch.stack(case[:3], dim=3).unbind(3)), expected)


# Bad input: the message names the argument, its value and what is allowed.


def _bad_inputs() -> list[tuple[str, dict[str, object]]]:
    return [
        (r"q has shape \(2, 8, 32\)", {"q": torch.zeros(2, 8, 32)}),
        (r"q has head dimension 24", {"q": torch.zeros(2, 8, 2, 24), "k": torch.zeros(2, 8, 2, 24)}),
        (r"no dimension may be empty", {"q": torch.zeros(0, 8, 2, 16)}),
        (r"q has 9 positions and k 8", {"q": torch.zeros(2, 9, 2, 16)}),
        (r"k has shape \(3, 8, 2, 16\)", {"k": torch.zeros(3, 8, 2, 16)}),
        (r"v has shape \(2, 7, 2, 16\)", {"v": torch.zeros(2, 7, 2, 16)}),
        (r"q has 2 heads and k 3", {"k": torch.zeros(2, 8, 3, 16), "v": torch.zeros(2, 8, 3, 16)}),
        (r"q has dtype torch.int32", {"q": torch.zeros(2, 8, 2, 16, dtype=torch.int32)}),
        (r"k has dtype torch.bfloat16", {"k": torch.zeros(2, 8, 2, 16, dtype=torch.bfloat16)}),
        (r"v is on meta", {"v": torch.zeros(2, 8, 2, 16, device="meta")}),
        (r"seq_start is \[0, 9\]", {"seq_start": torch.tensor([0, 9])}),
        (r"seq_start is \(1,\)", {"seq_start": torch.tensor([0])}),
        (r"cu_seqlens needs one packed sequence", {"cu_seqlens": torch.tensor([0, 8])}),
        (r"backend is 'cuda'", {"backend": "cuda"}),
        (r"backend 'triton' needs CUDA", {"backend": "triton"}),
        (r"q is of type ndarray; it must be a torch.Tensor", {"q": torch.zeros(2, 8, 2, 16).numpy()}),
        (r"seq_start is of type list", {"seq_start": [0, 1]}),
        (r"scale is nan; it must be finite", {"scale": float("nan")}),
    ]


@pytest.mark.parametrize(("message", "change"), _bad_inputs(), ids=[m for m, _ in _bad_inputs()])
def test_bad_input_is_named(message: str, change: dict[str, object]) -> None:
    arguments: dict[str, object] = {n: torch.zeros(2, 8, 2, 16) for n in ("q", "k", "v")}
    with pytest.raises(ValueError, match=message):
        stick_breaking_attention(**{**arguments, **change})  # type: ignore[arg-type]


def test_packed_boundaries_out_of_range_are_named() -> None:
    q = torch.zeros(1, 8, 2, 16)
    with pytest.raises(ValueError, match=r"cu_seqlens is \[0, 9\]"):
        stick_breaking_attention(q, q, q, cu_seqlens=torch.tensor([0, 9]))
