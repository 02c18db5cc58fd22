"""The operator's CPU paths against the float64 oracle, and the identities that stick-breaking attention must obey."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.stick_breaking import reference_attention, stick_breaking_attention
from kernels.stick_breaking.autograd import attend
from tests.kernels.exact import in_nan
from tests.kernels.stick_breaking.oracle import (
    REGIMES,
    assert_right,
    brute_force,
    make_case,
    make_nearly_used_up,
    output_and_gradients,
    reference,
)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("attend_current", [False, True])
def test_reference_is_the_product_form(regime: str, attend_current: bool) -> None:  # I9
    """Log space and product form agree, with their gradients; what the other tests hold on to is itself right."""
    case = make_case(regime, 2, 40, 50, 2, 1, 16, torch.float64)
    options = {"attend_current": attend_current, "seq_start": torch.tensor([0, 30]), "scale": 0.3}  # some see nothing
    expected = output_and_gradients(brute_force, case, **options)
    for x, y in zip(output_and_gradients(reference, case, **options), expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("Q", "T"), [(1, 1), (64, 64), (65, 65), (1, 100), (70, 200)])
def test_chunked_matches_float64(Q: int, T: int, regime: str) -> None:
    case = make_case(regime, 2, Q, T, 2, 1, 16, torch.float32)
    assert_right(in_nan(stick_breaking_attention), case, attend_current=regime == "long")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("D", "scale"), [(16, 0.5), (32, 0.1), (64, 0.2), (128, 0.05)])
def test_chunked_matches_float64_for_every_size_dtype_and_scale(D: int, scale: float, dtype: torch.dtype) -> None:
    case = make_case("sinks", 1, 150, 260, 4, 2, D, dtype)
    assert_right(stick_breaking_attention, case, attend_current=True, scale=scale)


@pytest.mark.parametrize(("regime", "Q"), [("random", 16_384), ("long", 200)])
def test_16384_tokens(regime: str, Q: int) -> None:
    assert_right(stick_breaking_attention, make_case(regime, 1, Q, 16_384, 1, 1, 16, torch.float32), tail=100)


@settings(max_examples=20)
@given(T=st.integers(1, 200), data=st.data(), regime=st.sampled_from(REGIMES), seed=st.integers(0, 10_000))
def test_limits_on_the_left_agree_with_the_oracle(T: int, data: st.DataObject, regime: str, seed: int) -> None:
    Q = data.draw(st.integers(1, T))
    if data.draw(st.booleans()):
        inner = data.draw(st.lists(st.integers(0, T), max_size=5))
        Q, options = T, {"cu_seqlens": torch.tensor([0, *sorted(inner), T])}
    else:
        options = {"seq_start": torch.tensor([data.draw(st.integers(0, T))])}
    assert_right(stick_breaking_attention, make_case(regime, 1, Q, T, 2, 2, 16, torch.float32, seed=seed), **options)


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_values_of_padding_may_be_anything(backend: str) -> None:
    """The row beside has none, so that a block of queries reads them."""
    case = make_case("sinks", 2, 70, 90, 2, 1, 16, torch.float32)
    attention = partial(stick_breaking_attention, seq_start=torch.tensor([0, 33]), backend=backend)
    expected = output_and_gradients(attention, case)
    case.v[1, :20], case.v[1, 20:33] = torch.nan, torch.inf
    assert all(torch.equal(x, y) for x, y in zip(output_and_gradients(attention, case), expected, strict=True))


@pytest.mark.parametrize("attend_current", [False, True])
@pytest.mark.parametrize("regime", REGIMES)
def test_weights_and_remainder_share_one_stick(regime: str, attend_current: bool) -> None:  # I9
    q, k, v, *_ = make_case(regime, 1, 200, 200, 2, 2, 16, torch.float32)
    total, remainder = stick_breaking_attention(q, k, torch.ones_like(v), attend_current=attend_current)
    torch.testing.assert_close(total + remainder[..., None], torch.ones_like(total), rtol=0, atol=2e-6)
    assert bool((remainder >= 0).all())
    if not attend_current:
        assert bool((total[:, 0] == 0).all() & (remainder[:, 0] == 1).all())


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
    shuffle = torch.cat([torch.randperm(29, generator=torch.Generator().manual_seed(1)), torch.tensor([29])])
    o, remainder = stick_breaking_attention(q, k, v)
    shuffled, same_remainder = stick_breaking_attention(q, k[:, shuffle], v[:, shuffle])
    assert (o - shuffled).abs().max() > 0.1
    torch.testing.assert_close(remainder, same_remainder)


def test_token_by_token_equals_parallel() -> None:
    q, k, v, *_ = make_case("sinks", 2, 40, 40, 2, 1, 16, torch.float32)
    steps = [stick_breaking_attention(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1]) for t in range(40)]
    for x, each in zip(stick_breaking_attention(q, k, v), zip(*steps, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(each, 1), x)


def test_used_up_sticks_are_skipped_and_others_are_not() -> None:
    q, k, v, *_ = make_case("even", 1, 1024, 1024, 1, 1, 16, torch.float32)
    oldest = attend(q, k, v, None, None, 0.25, False, "chunked")[2][0]
    assert oldest[-1] >= 1024 - 64 - 128 - 64  # one bit a key: 40 keys beyond the block's first query are enough
    q, k, v, *_ = make_case("long", 1, 1024, 1024, 1, 1, 16, torch.float32)
    assert bool((attend(q, k, v, None, None, 0.25, False, "chunked")[2][0] == 0).all())


def test_a_stick_is_not_used_up_too_soon() -> None:
    """Return what lies behind 128 keys weighs 2^-25 in all, but its values are large."""
    case = make_nearly_used_up(torch.float32, 20)
    exact = reference_attention(*case.to(torch.float64)[:3])[0]
    torch.testing.assert_close(stick_breaking_attention(*case[:3])[0].double(), exact, rtol=2e-5, atol=0)


# Among PyTorch's own features.


def test_works_under_compile_and_checkpoint() -> None:
    case = make_case("random", 1, 60, 60, 2, 1, 16, torch.float32)
    expected = output_and_gradients(stick_breaking_attention, case)
    for other in (
        torch.compile(lambda *x: stick_breaking_attention(*x), backend="aot_eager", fullgraph=True),
        partial(torch.utils.checkpoint.checkpoint, stick_breaking_attention, use_reentrant=False),
    ):
        torch.testing.assert_close(output_and_gradients(other, case), expected)


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


@pytest.mark.parametrize(("words", "change"), [
    ("q has shape (2, 8, 32)", {"q": torch.zeros(2, 8, 32)}),
    ("seq_start is [0, 9]", {"seq_start": torch.tensor([0, 9])}),
    ("scale is nan", {"scale": float("nan")}),
])  # fmt: skip
def test_bad_input_is_named(words: str, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        stick_breaking_attention(**{**{n: torch.zeros(2, 8, 2, 16) for n in "qkv"}, **change})
    assert words in str(refusal.value)
