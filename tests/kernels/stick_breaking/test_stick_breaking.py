"""The operator's CPU paths against the float64 oracle, and the identities that stick-breaking attention must obey."""

from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.stick_breaking import reference_attention, stick_breaking_attention
from kernels.stick_breaking.autograd import attend
from tests.kernels.exact import in_nan, on_both
from tests.kernels.stick_breaking.oracle import (
    REGIMES,
    Case,
    assert_right,
    brute_force,
    make_case,
    make_nearly_used_up,
    output_and_gradients,
    reference,
)

HALF, WIDE = torch.bfloat16, torch.float32


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
@pytest.mark.parametrize(("device", "Q", "T", "D"), on_both(
    ((Q, T, 16) for Q, T in ((1, 1), (64, 64), (65, 65), (1, 100), (70, 200))),
    ((Q, T, D) for D in (64, 128) for Q, T in ((1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (4096, 4096), (1999, 2048))),
))  # fmt: skip
def test_equals_the_oracle(device: str, Q: int, T: int, D: int, regime: str) -> None:
    case = make_case(regime, 2, Q, T, 2, 1, D, WIDE if device == "cpu" else HALF, device)
    assert_right(in_nan(stick_breaking_attention), case, attend_current=regime == "long")


@pytest.mark.parametrize(("device", "D", "dtype", "key_heads", "regime"), on_both(
    product((16, 32, 64, 128), (HALF, WIDE), (2,), ("sinks",)),
    product((16, 32, 64, 128), (HALF, torch.float16, WIDE), (1, 4), ("long", "sinks", "huge")),
), ids=str)  # fmt: skip
def test_sizes_dtypes_groups_and_scales(device: str, D: int, dtype: torch.dtype, key_heads: int, regime: str) -> None:
    case = make_case(regime, 1, 150, 260, 4, key_heads, D, dtype, device)
    assert_right(stick_breaking_attention, case, attend_current=True)
    if regime != "huge":  # whose logits every dtype has exactly with the default scale
        assert_right(stick_breaking_attention, case, attend_current=True, scale=3.0 / D)


@pytest.mark.parametrize(("device", "D", "dtype"), on_both([(16, WIDE)], [(32, HALF), (128, HALF)]))
def test_padding_documents_and_decoding(device: str, D: int, dtype: torch.dtype) -> None:
    case = make_case("long", 2, 700, 900, 2, 2, D, dtype, device)
    assert_right(stick_breaking_attention, case, seq_start=torch.tensor([13, 650], device=device))
    case = make_case("long", 1, 900, 900, 2, 2, D, dtype, device)
    assert_right(stick_breaking_attention, case, cu_seqlens=torch.tensor([0, 1, 130, 512, 900], device=device))
    for T in (1, 127, 5000):
        starts = torch.tensor([0, T // 2, T], device=device)
        assert_right(stick_breaking_attention, make_case("long", 3, 1, T, 4, 2, D, dtype, device), seq_start=starts)


@pytest.mark.parametrize(("device", "D", "dtype", "regime", "Q"), on_both(
    [(16, WIDE, "random", 16_384), (16, WIDE, "long", 200)], product((64, 128), (HALF,), ("random", "long"), (16_384,))
))  # fmt: skip
def test_16384_tokens(device: str, D: int, dtype: torch.dtype, regime: str, Q: int) -> None:
    assert_right(stick_breaking_attention, make_case(regime, 1, Q, 16_384, 2, 2, D, dtype, device), tail=100)


@settings(max_examples=20)
@given(T=st.integers(1, 200), data=st.data(), regime=st.sampled_from(REGIMES), seed=st.integers(0, 10_000))
def test_limits_on_the_left_agree_with_the_oracle(T: int, data: st.DataObject, regime: str, seed: int) -> None:
    Q = data.draw(st.integers(1, T))
    if data.draw(st.booleans()):
        inner = data.draw(st.lists(st.integers(0, T), max_size=5))
        Q, options = T, {"cu_seqlens": torch.tensor([0, *sorted(inner), T])}
    else:
        options = {"seq_start": torch.tensor([data.draw(st.integers(0, T))])}
    assert_right(stick_breaking_attention, make_case(regime, 1, Q, T, 2, 2, 16, WIDE, seed=seed), **options)


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_values_of_padding_may_be_anything(backend: str) -> None:
    """The row beside has none, so that a block of queries reads them."""
    case = make_case("sinks", 2, 70, 90, 2, 1, 16, WIDE)
    attention = partial(stick_breaking_attention, seq_start=torch.tensor([0, 33]), backend=backend)
    expected = output_and_gradients(attention, case)
    case.v[1, :20], case.v[1, 20:33] = torch.nan, torch.inf
    assert all(torch.equal(x, y) for x, y in zip(output_and_gradients(attention, case), expected, strict=True))


@pytest.mark.parametrize("attend_current", [False, True])
@pytest.mark.parametrize("regime", REGIMES)
def test_weights_and_remainder_share_one_stick(regime: str, attend_current: bool) -> None:  # I9
    q, k, v, *_ = make_case(regime, 1, 200, 200, 2, 2, 16, WIDE)
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


def test_token_by_token_equals_parallel() -> None:
    q, k, v, *_ = make_case("sinks", 2, 40, 40, 2, 1, 16, WIDE)
    steps = [stick_breaking_attention(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1]) for t in range(40)]
    for x, each in zip(stick_breaking_attention(q, k, v), zip(*steps, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(each, 1), x)


@pytest.mark.parametrize(("device", "D", "backend", "place"), on_both([(16, "chunked", 0)], [(64, "triton", 1)]))
def test_used_up_sticks_are_skipped_but_not_too_soon(device: str, D: int, backend: str, place: int) -> None:
    """One bit a key is left of an even stick; what lies behind 128 keys weighs 2^-25 in all, but its values are large."""
    oldest = {}
    for regime in ("even", "long"):
        q, k, v, *_ = make_case(regime, 1, 1024, 1024, 1, 1, D, WIDE if device == "cpu" else HALF, device)
        oldest[regime] = attend(q, k, v, None, None, D**-0.5, False, backend)[2][place].flatten()
    assert oldest["even"][-1] > 600
    assert not oldest["long"].any()
    case = Case(*(x.to(device) for x in make_nearly_used_up(WIDE, 20)))
    exact = reference_attention(*case.to(torch.float64)[:3])[0]
    torch.testing.assert_close(stick_breaking_attention(*case[:3])[0].double(), exact, rtol=2e-5, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("D", [64, 128])
def test_queries_that_stop_early_among_others(D: int) -> None:
    case = make_case("random", 1, 2000, 2000, 2, 2, D, HALF, "cuda")
    case.k[..., 0], case.q[..., 0] = 1.0, 2.0 * D**0.5
    for start in (320, 900, 1500):
        case.q[:, start : start + 70, :, 0] = -9.0 * D**0.5
    assert_right(stick_breaking_attention, case)


@pytest.mark.gpu
def test_many_heads_at_once_and_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 x 32 sequences and heads, as many programs as it takes to hang a kernel that waits for another."""
    case = make_case("long", 32, 1024, 1024, 32, 32, 32, HALF, "cuda")
    first, again = (output_and_gradients(stick_breaking_attention, case) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    alone = Case(*(x[7:8, :, 5:6] for x in case))
    assert_right(stick_breaking_attention, alone)
    for x, y in zip(first, output_and_gradients(stick_breaking_attention, alone), strict=True):
        assert torch.equal(x[7:8, :, 5:6], y)
    monkeypatch.setattr("kernels.stick_breaking.portable.backward.WORKSPACE_BYTES", 2**22)
    assert all(torch.equal(x, y) for x, y in zip(output_and_gradients(stick_breaking_attention, case), first, strict=True))


# Among PyTorch's own features.


@pytest.mark.parametrize(("device", "D", "compiler"), on_both([(16, "aot_eager")], [(64, "inductor")]))
def test_works_under_compile_and_checkpoint(device: str, D: int, compiler: str) -> None:
    case = make_case("random", 1, 60, 60, 2, 1, D, WIDE if device == "cpu" else HALF, device)
    expected = output_and_gradients(stick_breaking_attention, case)
    for other in (
        torch.compile(lambda *x: stick_breaking_attention(*x), backend=compiler, fullgraph=True),
        partial(torch.utils.checkpoint.checkpoint, stick_breaking_attention, use_reentrant=False),
    ):
        torch.testing.assert_close(output_and_gradients(other, case), expected)
    inputs = [x.requires_grad_() for x in case[:3]]
    backend = "chunked" if device == "cpu" else "triton"
    torch.library.opcheck(torch.ops.kernels_stick_breaking.forward.default, (*inputs, None, None, 0.25, False, backend))


def test_one_of_the_outputs_may_go_unused() -> None:
    case = make_case("long", 1, 80, 80, 2, 2, 16, WIDE)
    inputs = [x.requires_grad_() for x in case[:3]]
    both = torch.autograd.grad(stick_breaking_attention(*inputs), inputs, case[3:])
    o = torch.autograd.grad(stick_breaking_attention(*inputs)[0], inputs, case.do)
    remainder = torch.autograd.grad(stick_breaking_attention(*inputs)[1], inputs, case.dr)
    for x, y, z in zip(both, o, remainder, strict=True):
        torch.testing.assert_close(x, y + z)
