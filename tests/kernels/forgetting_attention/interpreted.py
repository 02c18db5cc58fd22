"""The operator's GPU kernels on a CPU, Triton's under its interpreter and Hopper's under ours, and in which order they add. Run
in a process of its own by `test_without_gpu`, as pytest."""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.forgetting_attention import (
    forgetting_attention,
    forgetting_attention_cached,
    gpu,
    norm_logit_bound,
    reference_attention,
    sum_log_gates,
)
from kernels.forgetting_attention.hopper import backward as hopper_backward
from kernels.forgetting_attention.hopper import backward_steps
from kernels.forgetting_attention.hopper import forward as hopper_forward
from kernels.forgetting_attention.portable import decode, decode_sums, tight
from kernels.forgetting_attention.portable import prepare as preparing
from kernels.forgetting_attention.portable.prepare import Prepared, prepare
from kernels.forgetting_attention.pruning.norms import triton_logit_bound
from kernels.forgetting_attention.pruning.tight import tight_tiles
from kernels.forgetting_attention.visibility import TILE, cumulative_log_gate
from tests.kernels import quick_interpreter
from tests.kernels.exact import in_nan
from tests.kernels.forgetting_attention.gluon_interpreter import as_python, interpreted_gluon, program
from tests.kernels.forgetting_attention.oracle import Case, assert_right, log_gates, make_case
from tests.kernels.forgetting_attention.regimes import (
    GRID,
    SAMPLED,
    Regime,
    assert_decoding_within,
    assert_within,
    out_of_range,
    overflow_of_a_training,
)
from tests.kernels.forgetting_attention.test_cached import CASES as CACHED
from tests.kernels.forgetting_attention.test_cached import compare_with_oracle
from tests.kernels.forgetting_attention.test_forgetting_attention import CASES, assert_heeds_or_refuses_every_option

quick_interpreter.prepare()
LENGTH = 270  # three tiles, the last with a few rows
NONE: dict[str, Any] = {"threshold": None, "seq_start": None, "cu_seqlens": None, "window_size": None}


@pytest.fixture(autouse=True, scope="module")
def _hopper() -> Iterator[None]:
    with interpreted_gluon():
        yield


attention = partial(forgetting_attention, backend="triton")


@pytest.fixture(params=["hopper", "triton"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(gpu, "_has_hopper_kernels", lambda q: request.param == "hopper" and q.shape[-1] >= 64)
    return request.param


@pytest.mark.parametrize("case", CASES, ids=str)
def test_portable_kernels_equal_the_oracle(case: tuple[Any, ...]) -> None:
    """Each kind of gate in one dtype."""
    gates, _, *sizes, options = case
    options = {name: x[-1:] if name == "seq_start" else x for name, x in options.items()}
    dtype = torch.float16 if gates in ("zero", "twenty") else torch.float32
    assert_right(in_nan(attention), make_case(gates, 1, *sizes, dtype), **options)


@pytest.mark.parametrize("kernels", ["hopper"], indirect=True)
@pytest.mark.parametrize("D", [64, 128])
def test_hopper_kernels_with_another_scale(D: int, kernels: str) -> None:
    assert_right(attention, make_case("mixture", 1, 150, 200, 2, 2, D, torch.bfloat16), scale=3.0 / D)


@pytest.mark.parametrize("kernels", ["hopper"], indirect=True)
@pytest.mark.parametrize("regime", SAMPLED, ids=str)
def test_regimes_on_hopper(regime: Regime, kernels: str) -> None:
    case, options = regime.make(LENGTH, 64, torch.bfloat16, "cpu", seed=4)
    assert_within(attention, case, **options)


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["hopper"], indirect=True)
@pytest.mark.parametrize("regime", GRID, ids=str)
def test_every_regime_on_hopper(regime: Regime, kernels: str) -> None:
    case, options = regime.make(LENGTH, 128, torch.bfloat16, "cpu", seed=4)
    assert_within(attention, case, **options)


@pytest.mark.parametrize("regime", [r for r in SAMPLED if r.limits != "documents"], ids=str)
def test_decoding(regime: Regime) -> None:
    case, options = regime.make(LENGTH, 16, torch.bfloat16, "cpu", seed=4)
    assert_decoding_within(attention, case, **options)


def test_what_left_the_range_is_right(kernels: str) -> None:
    for case in (*out_of_range("cpu"), overflow_of_a_training("cpu")):
        assert_within(attention, case)


def test_contiguous_inputs_off_the_copy_engines_grid(kernels: str) -> None:
    case, _ = Regime(3.0, "one").make(130, 64, torch.bfloat16, "cpu", seed=4)
    off = [torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x) for x in case]
    assert all(x.data_ptr() % 16 and x.is_contiguous() for x in off)
    assert torch.equal(attention(*off[:4]), attention(*case[:4]))


def test_rows_over_five_tiles(kernels: str) -> None:
    """In the loop before the diagonal the decays of the next tile are loaded a step ahead, from the third tile on."""
    q, k, v, _, do = make_case("zero", 1, 600, 600, 1, 1, 64, torch.bfloat16)
    assert_within(attention, Case(q, k, v, torch.full((1, 600, 1), -0.004), do))


def test_half_precision(kernels: str) -> None:
    case, _ = Regime(3.0, "mixture").make(LENGTH, 64, torch.float16, "cpu", seed=4)
    assert_within(attention, case)


@pytest.mark.parametrize("kernels", ["hopper"], indirect=True)
@pytest.mark.parametrize(
    ("gates", "tolerance", "without"), [(-15.0, 8e-4, 1.1e-3), (-6.0, 1.5e-3, 1.6e-3), (4.0, 5e-3, None)], ids=str
)
def test_what_rounding_takes_from_local_gates_gradients_is_put_back(
    gates: float, tolerance: float, without: float | None, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`without`: more than that is the error if nothing is; where gates are open nothing is put back."""
    generator = torch.Generator().manual_seed(4)
    q, k, v, do = (torch.randn(1, LENGTH, 2, 64, generator=generator).bfloat16() for _ in range(4))
    inputs = [q, k, v, torch.nn.functional.logsigmoid(torch.randn(1, LENGTH, 2, generator=generator) + gates)]

    def gradient(of: Callable[..., Tensor], dtype: torch.dtype | None = None) -> Tensor:
        leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in inputs]
        return torch.autograd.grad(of(*leaves), leaves[3:], do.to(dtype or do.dtype))[0].double()

    exact = gradient(reference_attention, torch.float64)
    corrected = gradient(attention)
    monkeypatch.setattr(hopper_backward, "LEAST_DECAY", math.inf)
    uncorrected = gradient(attention)
    found = [((x - exact).norm() / exact.norm()).item() for x in (corrected, uncorrected)]
    assert found[0] < tolerance, found
    assert torch.equal(corrected, uncorrected) if without is None else found[1] > without, found


# The order of the Hopper kernels' sums.


def adders(prepared: Prepared, H: int, Q: int, T: int) -> dict[tuple[int, int], list[int]]:
    """By head and step of queries, the key tiles that add to it, in their order."""
    found = {}
    for head in range(H):
        for m in range(0, Q, hopper_backward.BLOCK_M):
            last = (min(m + hopper_backward.BLOCK_M, Q) - 1 + T - Q) // TILE
            found[head, m] = list(range(int(prepared.start[0, head, m // TILE]), last + 1))
    return found


def summed(inputs: list[Tensor], prepared: Prepared, at_once: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict]:
    """Gradients, and who added to what in which order, with `at_once` programs side by side that stop now and then."""
    pause, H = random.Random(at_once), inputs[0].shape[2]
    order: dict[tuple[int, int], list[int]] = {}
    lock, real = threading.Lock(), as_python(backward_steps._add_dq)

    def recorded(dq_ptr: Any, dq_MD: Tensor, places: Tensor, m: Any, WARPS: int) -> None:
        time.sleep(pause.choice((0.0, 0.01)) if at_once > 1 else 0.0)
        tile, head = divmod(int(program.id), H)  # all heads side by side
        with lock:
            order.setdefault((head, int(m)), []).append(tile)
            real(dq_ptr, dq_MD, places, m, WARPS)

    with monkeypatch.context() as patch, interpreted_gluon(at_once):
        patch.setattr(backward_steps, "_add_dq", recorded)
        return hopper_backward.hopper_backward(*inputs, prepared, 0.125, True), order


@pytest.mark.parametrize(
    ("D", "Q", "T", "gate", "threshold"),
    [(64, 500, 500, -0.01, None), (128, 300, 440, -0.01, None), (64, 640, 640, -0.1, -20.0)],
    ids=["whole", "fewer queries than keys", "pruned"],
)
def test_sums_have_one_order_whatever_the_pace_of_programs(
    D: int, Q: int, T: int, gate: float, threshold: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v, _, do = make_case("zero", 1, Q, T, 2, 2, D, torch.bfloat16)
    limit = None if threshold is None else torch.full((1, 2), threshold)
    prepared = prepare(torch.full((1, T, 2), gate), Q, **{**NONE, "threshold": limit}, exact=False)
    o, lse, _ = hopper_forward.hopper_forward(q, k, v, prepared, 0.125)
    expected, expected_order = None, adders(prepared, 2, Q, T)
    assert threshold is None or max(map(len, expected_order.values())) == 3
    for at_once in (1, 8):
        gradients, order = summed([do, q, k, v, o, lse], prepared, at_once, monkeypatch)
        assert order == expected_order
        expected = expected or gradients
        assert all(torch.equal(x, y) for x, y in zip(gradients, expected, strict=True))


@pytest.mark.parametrize("kernels", ["hopper"], indirect=True)
def test_sums_are_ordered_unless_asked_not_to(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, _ = Regime(3.0, "one").make(70, 64, torch.bfloat16, "cpu", seed=4)
    ordered, real = [], hopper_backward.hopper_backward
    monkeypatch.setattr(gpu, "hopper_backward", lambda *x: ordered.append(x[-1]) or real(*x))
    for deterministic in (True, False):
        assert_within(partial(attention, deterministic=deterministic), case)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert_within(partial(attention, deterministic=False), case)
    assert ordered == [True, False, True]


# Preparation, pruning and decoding.


def test_preparation_in_one_kernel_and_in_three(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    for T, exact in ((1, False), (300, False), (450, True)):
        gates = log_gates("cuts", (2, T, 3), generator) - 0.05
        for more in ({}, {"window_size": 77}, {"seq_start": torch.tensor([5, T])}, {"threshold": -20 * torch.rand(2, 3)}):
            found = []
            for whole in (preparing.WHOLE_TILES, 0):  # what takes three kernels
                monkeypatch.setattr(preparing, "WHOLE_TILES", whole)
                found.append(prepare(gates, T, **{**NONE, **more}, exact=exact))
                monkeypatch.undo()
            for name, one, three in zip(Prepared._fields, *found, strict=True):
                torch.testing.assert_close(one, three, msg=lambda m, name=name: f"{name}: {m}")


def test_bounds_of_logits() -> None:
    """Grouped queries, one stretch of rows and more."""
    for Q, T in ((300, 1100), (7, 512), (1, 1)):
        q, k = torch.randn(2, 4, Q, 128).transpose(1, 2), torch.randn(2, T, 2, 128)
        torch.testing.assert_close(triton_logit_bound(q, k, 0.3), norm_logit_bound(q, k, 0.3))


@pytest.mark.parametrize(("Q", "T", "key_heads", "gate", "tolerance", "options"), [
    (600, 600, 1, -0.05, -10.0, {}), (390, 600, 2, -0.1, -10.0, {"window_size": 400}),
    (520, 520, 2, -0.3, -10.0, {"seq_start": torch.tensor([0, 333])}),
    (400, 400, 1, -3.0, -10.0, {"seq_start": torch.tensor([400, 5])}),
    (640, 640, 1, -0.006, -0.7, {}),  # what every tile leaves counts
])  # fmt: skip
def test_tight_starts(
    Q: int, T: int, key_heads: int, gate: float, tolerance: float, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of `tight_tiles`, with tiles in one block and in several, and limits on the left."""
    q, k, _, log_fgate, _ = make_case("mixture", 2 if options else 1, Q, T, 2 * key_heads, key_heads, 16, torch.float32)
    k = k * torch.linspace(1, 3, key_heads)[:, None] * (1.0 if tolerance < -1 else 1e-3)
    log_fgate = gate + 0.1 * log_fgate.clamp(min=-30.0) * (tolerance < -1)
    before = prepare(log_fgate, Q, **{**NONE, **options}, exact=False)
    count = tight_tiles(q, k, cumulative_log_gate(log_fgate), before.first_key, 0.25, tolerance)
    assert bool((count > 0).any())
    for block in (1024, 2):
        monkeypatch.setattr(tight, "MOST_HALVES", block)
        prepared = before._replace(start=before.start.clone())
        tight.tighten(q, k, prepared, 0.25, tolerance)
        torch.testing.assert_close(prepared.start, torch.maximum(before.start, count))


def test_pruned_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program reads all keys, 64 at a time from the last, until what is left has decayed below the threshold."""
    q, k, v, log_fgate, _ = make_case("zero", 1, 1, 300, 1, 1, 16, torch.float32)
    log_fgate = torch.full_like(log_fgate, -0.01)
    monkeypatch.setattr(decode, "TARGET_PROGRAMS", 1)
    pruned = attention(q, k, v, log_fgate, adaptive_threshold=-1.5)
    torch.testing.assert_close(pruned, attention(q, k, v, log_fgate, window_size=3 * 64))


def test_decoding_over_a_cache_equals_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with more chunks than are joined at once."""
    compare_with_oracle("triton", torch.float32, 2e-6, cases=CACHED[3:4])
    monkeypatch.setattr(decode_sums, "LEAST_CHUNK", 64)
    monkeypatch.setattr(decode_sums, "MOST_CHUNK", 64)
    compare_with_oracle("triton", torch.float32, 2e-6, cases=CACHED[4:5])


def test_decoding_reads_what_is_filled_in_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of places that are not filled in and of chunks that are pruned no key is read: none is a number."""
    q, k, v, log_fgate, _ = make_case("mixture", 1, 1, 700, 1, 1, 16, torch.float32)
    sums = sum_log_gates(0.03 * log_fgate.clamp(min=-3.0))
    monkeypatch.setattr(decode_sums, "LEAST_CHUNK", 16)
    for length in (1, 16, 17, 500, 700):
        many = torch.tensor([length], dtype=torch.int32)
        empty = [x.clone() for x in (k, v, sums)]
        for x in empty:
            x[:, length:] = torch.nan
        first = [x[:, :length] for x in (k, v, sums)]
        expected = forgetting_attention_cached(q, *first, adaptive_threshold=-2.0)
        for most in (16, 64):  # 64: with the larger blocks of long chunks
            monkeypatch.setattr(decode_sums, "MOST_CHUNK", most)
            monkeypatch.setattr(decode_sums, "PROGRAMS", 1)
            found = forgetting_attention_cached(q, *empty, length=many, adaptive_threshold=-2.0, backend="triton")
            torch.testing.assert_close(found, expected)
    level = float(sums[0, -1, 0] - sums[0, 520, 0])
    expected = forgetting_attention_cached(q, k, v, sums, adaptive_threshold=level)
    k[:, :512], v[:, :512] = torch.nan, torch.nan
    monkeypatch.setattr(decode_sums, "MOST_CHUNK", 16)
    found = forgetting_attention_cached(q, k, v, sums, adaptive_threshold=level, backend="triton")
    torch.testing.assert_close(found, expected)


def test_limits_without_strides() -> None:
    """A column of spans, one start for all, every other boundary: kernels read limits as they lie in memory."""
    q, k, v, log_fgate, _ = make_case("near_zero", 2, 40, 40, 1, 1, 16, torch.float32)
    for start in (torch.tensor([[39, 3], [9, 30]])[:, 1], torch.tensor([20]).expand(2)):
        expected = forgetting_attention(q, k, v, log_fgate, seq_start=start, backend="reference")
        torch.testing.assert_close(attention(q, k, v, log_fgate, seq_start=start), expected)
        one, last, sums = q[:, -1:], expected[:, -1:], sum_log_gates(log_fgate)
        torch.testing.assert_close(attention(one, k, v, log_fgate, seq_start=start), last)
        torch.testing.assert_close(forgetting_attention_cached(one, k, v, sums, seq_start=start, backend="triton"), last)
    first = [x[:1] for x in (q, k, v, log_fgate)]
    ends = torch.tensor([0, 9, 1, 9, 30, 9, 40])[::2]
    expected = forgetting_attention(*first, cu_seqlens=ends, backend="reference")
    torch.testing.assert_close(attention(*first, cu_seqlens=ends), expected)


def test_every_option_is_heeded_or_refused() -> None:
    assert_heeds_or_refuses_every_option("triton")


def test_operator_passes_opcheck() -> None:
    q, k, v, log_fgate, _ = make_case("one", 1, 9, 9, 2, 2, 16, torch.float32)
    inputs = [x.requires_grad_() for x in (q, k, v, log_fgate)]
    operator = torch.ops.kernels_forgetting_attention.forward.default
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, (*inputs, None, -10.0, None, None, None, 0.25, False, "triton"), test_utils=tests)
