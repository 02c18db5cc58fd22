"""The operator's CPU paths against the float64 oracle, and the identities that forgetting attention must obey."""

import math
import sys
from contextlib import suppress
from functools import partial
from inspect import Parameter, signature
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention_shared.arguments import DTYPES
from kernels.forgetting_attention import forgetting_attention, pruned_tile_share, qk_norm_logit_bound
from kernels.forgetting_attention.pruning.threshold import norm_logit_bound, pruned_tiles, pruning_threshold
from kernels.forgetting_attention.visibility import TILE, cumulative_log_gate
from tests.kernels.exact import in_nan, on_both
from tests.kernels.forgetting_attention.oracle import GATES, assert_right, make_case, output_and_gradients
from tests.kernels.forgetting_attention.regimes import (
    GRID,
    SAMPLED,
    Regime,
    assert_decoding_within,
    assert_within,
    out_of_range,
    overflow_of_a_training,
)

HALF, WIDE = torch.bfloat16, torch.float32
CASES: tuple[tuple[Any, ...], ...] = (  # gates, B, Q, T, H, key heads, D, options
    ("one", 2, 1, 1, 2, 1, 16, {}),
    ("mixture", 2, 63, 127, 2, 1, 16, {"scale": 0.3}),
    ("cuts", 2, 300, 300, 2, 2, 32, {"scale": 0.3}),
    ("zero", 1, 65, 129, 4, 2, 64, {"scale": 0.05}),
    ("single_cliff", 1, 150, 260, 2, 1, 128, {"scale": 0.2}),
    ("twenty", 2, 140, 170, 2, 1, 16, {}),
    ("near_zero", 2, 140, 200, 2, 2, 16, {"seq_start": torch.tensor([13, 90]), "window_size": 50}),
    ("near_zero", 2, 200, 300, 2, 1, 16, {"seq_start": torch.tensor([300, 7])}),
    ("near_zero", 1, 150, 150, 2, 2, 16, {"cu_seqlens": torch.tensor([0, 0, 40, 41, 41, 41, 150, 150])}),
    ("one", 1, 300, 300, 2, 2, 16, {"adaptive_threshold": -0.5, "scale": 0.3}),
)
LENGTHS = (
    (1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (127, 127), (1000, 1000), (4096, 4096), (1, 300), (63, 200), (128, 1000),
    (1999, 2048),
)  # fmt: skip
ENDS = torch.tensor([0, 1, 130, 512, 900], dtype=torch.int32)
ON_A_GPU = (  # the same, with a dtype before the options
    *((gates, 2, *length, 2, 2, D, HALF, {}) for gates, length, D in product(GATES, LENGTHS, (64, 128))),
    *(
        (gates, 2, 300, 333, 4, key_heads, D, dtype, {"scale": scale})
        for gates, key_heads, D, dtype in product(("mixture", "zero", "twenty"), (1, 2, 4), (16, 32, 64, 128), DTYPES)
        for scale in (D**-0.5, 3.0 / D)
    ),
    *(
        ("near_zero", 2 if Q < 900 else 1, Q, 900, 2, 2, D, HALF, {**limit, "window_size": window})  # a key too many would show
        for D, window in product((32, 64, 128), (None, 1, 70, 500))
        for Q, limit in ((700, {"seq_start": torch.tensor([13, 650])}), (900, {"cu_seqlens": ENDS}))
    ),
    *((gates, 1, 2048, 2048, 2, 2, D, HALF, {"adaptive_threshold": -0.05}) for gates, D in product(GATES, (64, 128))),
)


@pytest.mark.parametrize("backend", ["chunked", "reference"])
@pytest.mark.parametrize("dtype", [HALF, WIDE], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_oracle(case: tuple[Any, ...], dtype: torch.dtype, backend: str) -> None:
    *sizes, options = case
    assert_right(in_nan(partial(forgetting_attention, backend=backend)), make_case(*sizes, dtype), **options)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ON_A_GPU, ids=str)
def test_equals_the_oracle_on_a_gpu(case: tuple[Any, ...]) -> None:
    *sizes, options = case
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    assert_right(in_nan(forgetting_attention), make_case(*sizes, "cuda"), **options)


@pytest.mark.parametrize(("device", "regime", "T", "D"), on_both(
    product(SAMPLED, (270,), (16,)), product(GRID, (700,), (32, 64, 128))
), ids=str)  # fmt: skip
def test_regimes(device: str, regime: Regime, T: int, D: int) -> None:
    for dtype in (HALF, WIDE):
        case, options = regime.make(T, D, dtype, device, seed=4)
        assert_within(forgetting_attention, case, **options)
        if regime.limits != "documents":
            assert_decoding_within(forgetting_attention, case, **options)


@pytest.mark.parametrize("device", on_both([()], [()]))
def test_what_left_the_range_is_right(device: str) -> None:
    for case in (*out_of_range(device), overflow_of_a_training(device)):
        assert_within(forgetting_attention, case)


@settings(max_examples=20)
@given(data=st.data(), T=st.integers(1, 200), gates=st.sampled_from(GATES), seed=st.integers(0, 10_000))
def test_limits_on_the_left_agree_with_the_oracle(data: st.DataObject, T: int, gates: str, seed: int) -> None:
    options: dict[str, Any] = {"window_size": data.draw(st.none() | st.integers(1, 250))}
    Q = data.draw(st.integers(1, T))
    if Q == T and data.draw(st.booleans()):
        inner = data.draw(st.lists(st.integers(0, T), max_size=6))
        options["cu_seqlens"] = torch.tensor([0, *sorted(inner), T])
    else:
        options["seq_start"] = torch.tensor([data.draw(st.integers(0, T))])
    if data.draw(st.booleans()):
        options["adaptive_threshold"] = data.draw(st.floats(-20.0, 0.0))
    assert_right(forgetting_attention, make_case(gates, 1, Q, T, 2, 2, 16, WIDE, seed=seed), **options)


@pytest.mark.parametrize("window", [90, 2**31, 2**32 + 10, sys.maxsize])
def test_a_window_of_all_keys_is_none(window: int) -> None:
    case = make_case("near_zero", 1, 60, 90, 2, 2, 16, WIDE)
    assert torch.equal(forgetting_attention(*case[:4], window_size=window), forgetting_attention(*case[:4]))


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_values_of_padding_may_be_anything(backend: str) -> None:
    """The row beside has none, so that a block of queries reads them."""
    case = make_case("mixture", 2, 70, 90, 2, 1, 16, WIDE)
    attention = partial(forgetting_attention, seq_start=torch.tensor([0, 33]), backend=backend)
    expected = output_and_gradients(attention, case)
    case.v[1, :20], case.v[1, 20:33] = torch.nan, torch.inf
    assert all(torch.equal(x, y) for x, y in zip(output_and_gradients(attention, case), expected, strict=True))


# Identities of the papers' mathematics.


def test_open_gates_give_softmax_attention() -> None:  # I1
    case = make_case("zero", 2, 130, 130, 2, 2, 32, WIDE)
    q, k, v = (x.transpose(1, 2) for x in case[:3])
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3).transpose(1, 2)
    torch.testing.assert_close(forgetting_attention(*case[:4], scale=0.3), expected)


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


def test_the_first_gate_never_matters() -> None:  # I3
    case = make_case("one", 1, 80, 80, 2, 2, 16, WIDE)
    other = case.log_fgate.clone()
    other[:, 0] -= 3.0
    torch.testing.assert_close(forgetting_attention(*case[:3], other), forgetting_attention(*case[:4]))
    assert bool((output_and_gradients(forgetting_attention, case)[4][:, 0] == 0).all())


def test_softmax_form_is_the_recurrent_form() -> None:  # I4
    q, k, v, log_fgate, _ = make_case("one", 1, 40, 40, 2, 2, 16, torch.float64)
    outputs = []
    weight = torch.zeros(1, 2, 0, dtype=torch.float64)  # F_ij of the keys so far
    for i in range(40):
        weight = torch.cat([weight * log_fgate[:, i].exp()[..., None], torch.ones(1, 2, 1)], -1)
        score = weight * (torch.einsum("bhd,bjhd->bhj", q[:, i], k[:, : i + 1]) / 4.0).exp()
        outputs.append(torch.einsum("bhj,bjhd->bhd", score, v[:, : i + 1]) / score.sum(-1, keepdim=True))
    torch.testing.assert_close(forgetting_attention(q, k, v, log_fgate), torch.stack(outputs, 1))


def test_gate_gradient_is_the_sum_of_row_minus_column_sums() -> None:  # I5
    case = make_case("one", 1, 30, 30, 1, 1, 16, torch.float64)
    q, k, v, log_fgate, do = (x[0, :, 0] for x in case)
    cum = log_fgate.cumsum(0)
    decay = (cum[:, None] - cum).requires_grad_()
    logits = (q @ k.T / 4.0 + decay).masked_fill(torch.ones(30, 30).triu(1).bool(), -torch.inf)
    (ds,) = torch.autograd.grad(logits.softmax(-1) @ v, decay, do)
    expected = (ds.sum(1) - ds.sum(0)).flip(0).cumsum(0).flip(0)
    torch.testing.assert_close(output_and_gradients(forgetting_attention, case)[4][0, :, 0], expected)


def test_token_by_token_equals_parallel() -> None:  # I6, the attention's part
    q, k, v, log_fgate, _ = make_case("mixture", 2, 40, 40, 2, 1, 16, WIDE)
    steps = [forgetting_attention(q[:, t : t + 1], *(x[:, : t + 1] for x in (k, v, log_fgate))) for t in range(40)]
    torch.testing.assert_close(torch.cat(steps, 1), forgetting_attention(q, k, v, log_fgate))


@pytest.mark.parametrize("gates", ["one", "twenty", "mixture"])
def test_pruning_drops_little_and_a_prefix(gates: str) -> None:  # I7, I8
    T = 1024
    case = make_case(gates, 1, T, T, 2, 2, 16, WIDE)
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
    torch.testing.assert_close(pruned_tile_share(log_fgate, threshold), dropped.sum(-1) / 36.0)
    logits = torch.einsum("bqhd,bthd->bhqt", q, k) / 4.0 + (cum[..., :, None] - cum[..., None, :])
    weights = logits.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)
    is_dropped = torch.arange(T) < dropped.repeat_interleave(128, -1)[..., None] * 128
    assert weights.masked_fill(~is_dropped, 0.0).sum(-1).max() < math.exp(-10)
    gap = forgetting_attention(*case[:4], adaptive_threshold="auto") - forgetting_attention(*case[:4])
    assert gap.abs().max() <= 2 * math.exp(-10) * v.norm(dim=-1).max()


def test_the_threshold_is_the_papers() -> None:
    """delta = -2 U - log L + log eps with eps = e^-10 (ACP), and no threshold drops the tile of the query itself."""
    assert pruning_threshold(3.0, 1024) == pytest.approx(-6.0 - math.log(1024) - 10.0)
    assert pruning_threshold(3.0, 1024, -2.0) == pytest.approx(-6.0 - math.log(1024) - 2.0)
    case = make_case("one", 1, 200, 300, 2, 2, 16, WIDE)
    counts = pruned_tiles(cumulative_log_gate(case.log_fgate), 200, torch.full((1, 2), 1e6))
    assert counts.tolist() == [[[0, 1]] * 2], "queries 100 and 228 lie in the keys' first and second tile"


@pytest.mark.parametrize("cut", [0, 1, 64, 199])
def test_a_zero_gate_erases_the_past(cut: int) -> None:  # I10
    case = make_case("one", 1, 200, 200, 2, 2, 16, WIDE)
    case.log_fgate[:, cut] = -torch.inf
    o, *gradients = output_and_gradients(forgetting_attention, case)
    torch.testing.assert_close(o[:, cut:], forgetting_attention(*(x[:, cut:] for x in case[:4])))
    assert all(bool(x.isfinite().all()) for x in gradients)


def test_a_small_gate_is_no_cut() -> None:
    """A key that is e^100 times as likely as all others outlasts a gate of e^-50, and one of e^-1500 a gap of e^1600."""
    for decay, lead in ((50.0, 100.0), (1500.0, 1600.0)):
        case = make_case("zero", 1, 200, 200, 1, 1, 16, WIDE)
        case.q.zero_()[..., 0] = 4.0
        case.k.zero_()[:, 5, :, 0] = lead
        case.log_fgate[:, 100] = -decay
        o = forgetting_attention(*case[:4])
        torch.testing.assert_close(o[:, 100:], case.v[:, 5:6].expand(-1, 100, -1, -1))


def test_decay_over_65536_tokens_beats_a_float32_sum() -> None:
    T, window = 65_536, 64
    log_fgate = -torch.rand(1, T, 1, generator=torch.Generator().manual_seed(0)) * 1.5
    across = lambda cum: cum[window:] - cum[:-window]  # noqa: E731
    exact = across(log_fgate.double().cumsum(1)[0, :, 0])
    sums = cumulative_log_gate(log_fgate)[0, 0], log_fgate.cumsum(1)[0, :, 0]
    off = [(across(x).float().double() - exact).abs().max() for x in sums]
    assert off[0] < 1e-5 < 1e-3 < off[1]


def test_logit_bounds_hold() -> None:
    q, k, *_ = make_case("one", 2, 50, 70, 4, 2, 32, WIDE)
    largest = torch.einsum("bqhd,bthd->bhqt", q, k.repeat_interleave(2, 2)).abs().amax((-1, -2))
    assert bool((0.3 * largest <= norm_logit_bound(q, k, 0.3)).all())


@pytest.mark.parametrize(("rule", "roundings"), [("qk_norm", 1), ("qk_norm", 2), ("auto", 1)])
def test_pruning_keeps_its_promise_of_rounded_queries_and_keys(rule: str, roundings: int) -> None:
    """The worst case: all old keys have logit U and D just below the threshold, the query's own has logit -U."""
    T, D, log_tolerance = 2048, 64, -10.0
    weight = torch.full((D,), 2.0079)  # bf16 rounds it up by nearly half a unit
    k = weight.bfloat16().expand(1, T, 1, D).clone()
    k[:, -TILE:] *= -1
    q = weight.bfloat16().expand(1, T, 1, D)
    if roundings == 2:  # as a rotation by a small angle would: one unit more in half of the numbers, within their norm
        weight = weight / (1 + 2**-8)
    bound = norm_logit_bound(q, k, D**-0.5)
    if rule == "qk_norm":
        bound = qk_norm_logit_bound(weight, weight, D, torch.bfloat16, roundings)
    threshold = torch.as_tensor(pruning_threshold(bound, T, log_tolerance)).reshape(1, 1)
    log_fgate = torch.zeros(1, T, 1)
    log_fgate[:, -TILE] = torch.nextafter(threshold, torch.tensor(-torch.inf))
    cum_BHT = cumulative_log_gate(log_fgate)
    assert pruned_tiles(cum_BHT, T, threshold)[0, 0, -1] == T // TILE - 1, "all but the query's own tile are skipped"
    row = T - TILE
    logits = (q[0, row, 0].double() @ k[0, : row + 1, 0].double().T) * D**-0.5 + cum_BHT[0, 0, row] - cum_BHT[0, 0, : row + 1]
    lost = logits[:row].logsumexp(0) - logits.logsumexp(0)
    assert log_tolerance - 0.3 < lost < log_tolerance


# Among PyTorch's own features.


def test_works_under_compile_and_checkpoint() -> None:
    """Pruned by a bound too, at lengths that are not compiled one by one."""
    compiled = torch.compile(partial(forgetting_attention, adaptive_threshold="auto"), backend="aot_eager", fullgraph=True,
                             dynamic=True)  # fmt: skip
    for T in (300, 131):
        case = make_case("one", 1, T, T, 2, 1, 16, WIDE)
        expected = output_and_gradients(partial(forgetting_attention, adaptive_threshold="auto"), case)
        torch.testing.assert_close(output_and_gradients(compiled, case), expected)
    checkpointed = partial(torch.utils.checkpoint.checkpoint, forgetting_attention, use_reentrant=False)
    expected = output_and_gradients(forgetting_attention, case)
    torch.testing.assert_close(output_and_gradients(checkpointed, case), expected)


def test_operator_passes_opcheck() -> None:
    q, k, v, log_fgate, _ = make_case("one", 1, 20, 30, 2, 1, 16, WIDE)
    inputs = [x.requires_grad_() for x in (q, k, v, log_fgate)]
    operator = torch.ops.kernels_forgetting_attention.forward.default
    torch.library.opcheck(operator, (*inputs, None, -10.0, None, None, None, 0.25, False, "chunked"))


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
        case = make_case("one", 1, queries, LENGTH, 1, 1, 16, WIDE)
        inputs = (*case[:3], torch.full((1, LENGTH, 1), -0.08))  # so open that what is left out would show
        plain = forgetting_attention(*inputs, backend="reference")
        for options in OPTIONS:
            if queries == 1 and options.keys() & {"cu_seqlens", "adaptive_threshold"}:
                continue  # refused for every backend, and pruned in other steps in decoding
            expected = forgetting_attention(*inputs, backend="reference", **options)
            if queries > 1 and "deterministic" not in options:
                assert not torch.equal(plain, expected), options
            for backend in backends:
                with suppress(ValueError):
                    found = forgetting_attention(*inputs, backend=backend, **options)
                    torch.testing.assert_close(found, expected)


def test_every_option_is_heeded_or_refused() -> None:
    named = {name for name, each in signature(forgetting_attention).parameters.items() if each.kind is Parameter.KEYWORD_ONLY}
    assert named - {"backend"} == {name for options in OPTIONS for name in options}, "give each option a value in OPTIONS"
    assert_heeds_or_refuses_every_option("chunked")


REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("q has head dimension 24", {"q": torch.zeros(2, 8, 2, 24), "k": torch.zeros(2, 8, 2, 24)}),
    ("q has 9 positions and k 8", {"q": torch.zeros(2, 9, 2, 16)}),
    ("q has 2 heads and k 3", {"k": torch.zeros(2, 8, 3, 16), "v": torch.zeros(2, 8, 3, 16)}),
    ("k has dtype torch.bfloat16", {"k": torch.zeros(2, 8, 2, 16, dtype=HALF)}),
    ("log_fgate has dtype torch.bfloat16", {"log_fgate": torch.zeros(2, 8, 2, dtype=HALF)}),
    ("log_fgate reaches inf", {"log_fgate": torch.full((2, 8, 2), torch.nan)}),
    ("seq_start is [0, 9]", {"seq_start": torch.tensor([0, 9])}),
    ("cu_seqlens needs one packed sequence", {"cu_seqlens": torch.tensor([0, 8])}),
    ("window_size is 0", {"window_size": 0}),
    ("backend 'triton' needs CUDA", {"backend": "triton"}),
    ("adaptive_threshold is 1.0", {"adaptive_threshold": 1.0}),
    ("log_tolerance is 0.0", {"adaptive_threshold": "tight", "log_tolerance": 0.0}),
    ("scale requires a gradient", {"scale": torch.tensor(0.1, requires_grad=True)}),
)


@pytest.mark.parametrize(("words", "change"), REFUSED, ids=[words for words, _ in REFUSED])
def test_bad_input_is_named(words: str, change: dict[str, Any]) -> None:
    arguments = {**{n: torch.zeros(2, 8, 2, 16) for n in ("q", "k", "v")}, "log_fgate": torch.zeros(2, 8, 2)}
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        forgetting_attention(**{**arguments, **change})
    assert words in str(refusal.value)
