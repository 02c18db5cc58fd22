"""The GPU kernels over the whole grid, against the float64 oracle."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.benchmark.errors import make_regime, relative_errors
from kernels.forgetting_attention import forgetting_attention, gpu
from kernels.forgetting_attention.portable import tight as triton_tight
from kernels.forgetting_attention.portable.prepare import prepare
from kernels.forgetting_attention.pruning.norms import triton_logit_bound
from kernels.forgetting_attention.pruning.tight import tight_tiles
from kernels.forgetting_attention.visibility import cumulative_log_gate
from tests.kernels.forgetting_attention.oracle import GATES, Case, assert_right, attend, errors, make_case, output_and_gradients
from tests.kernels.forgetting_attention.regimes import Regime, assert_within, regimes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("D", [16, 64, 128])
@pytest.mark.parametrize(("Q", "T", "most"), [(1500, 1500, 1024), (4096, 5000, 8), (16_384, 16_384, 1024)])
def test_tight_starts(Q: int, T: int, most: int, D: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `tight_tiles`, but for tiles that lie at the tolerance."""
    monkeypatch.setattr(triton_tight, "MOST_HALVES", most)
    q, k, _, log_fgate, _ = make_case("mixture", 2, Q, T, 4, 2, D, dtype, "cuda")
    log_fgate = 0.02 * log_fgate.clamp(min=-20.0)
    seq_start = torch.tensor([3, 777], device="cuda")
    prepared = prepare(log_fgate, Q, None, seq_start, None, None, exact=dtype == torch.float32)
    before = prepared.start.clone()
    triton_tight.tighten(q, k, prepared, D**-0.5, -10.0)
    given = q, k, cumulative_log_gate(log_fgate), prepared.first_key, D**-0.5
    fewest, most_of_all = (torch.maximum(before, tight_tiles(*given, -10.0 + x)) for x in (-5e-3, 5e-3))
    assert bool(((prepared.start >= fewest) & (prepared.start <= most_of_all)).all())
    assert bool((fewest > before).any())


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("gates", ["one", "mixture", "cuts", "zero"])
def test_pruned_against_unpruned(gates: str, D: int) -> None:
    case = make_case(gates, 1, 2048, 2048, 2, 2, D, torch.bfloat16, "cuda")
    for rule in ("auto", "tight"):
        assert_right(partial(forgetting_attention, adaptive_threshold=rule), case)


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("T", [1, 127, 1000, 5000])
def test_one_token_decoding(T: int, gates: str) -> None:
    case = make_case(gates, 3, 1, T, 4, 2, 64, torch.bfloat16, "cuda")
    for window in (None, 70):
        options: dict[str, Any] = {"seq_start": torch.tensor([0, T // 2, T], device="cuda"), "window_size": window}
        exact, eager = attend(*case.to(torch.float64)[:4], **options), attend(*case[:4], **options)
        found = forgetting_attention(*case[:4], **options)
        assert errors([found], [exact])[0] <= 2 * errors([eager], [exact])[0] + 0.01


def test_decoding_in_cuda_graphs() -> None:
    """A graph's counters are its own: warmed up or not, replayed on another stream, beside calls that are not of it."""
    case = make_case("mixture", 3, 1, 1000, 4, 2, 64, torch.bfloat16, "cuda")
    forgetting_attention(*case[:4])  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = forgetting_attention(*case[:4])
    expected = forgetting_attention(*case[:4])
    for _ in range(3):
        found.zero_()
        graph.replay()
        assert torch.equal(found, expected)
        assert torch.equal(forgetting_attention(*case[:4]), expected)
    compiled = torch.compile(forgetting_attention, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        with torch.no_grad():
            assert torch.equal(compiled(*case[:4]), expected)


def test_launches_follow_what_they_are_given() -> None:
    """Another dtype, size, start or stream after a call is another kernel, or the same with other numbers."""
    for D, T, dtype in ((64, 300, torch.bfloat16), (64, 16, torch.bfloat16), (128, 300, torch.float16), (64, 1, torch.float32)):
        case = make_case("mixture", 1, T, T, 2, 2, D, dtype, "cuda")
        for _ in range(2):
            assert_right(partial(forgetting_attention, adaptive_threshold="auto"), case)
    case = make_case("mixture", 2, 1, 300, 2, 2, 64, torch.bfloat16, "cuda")
    expected = forgetting_attention(*case[:4])
    buffer = torch.zeros(case.k.numel() + 1, device="cuda", dtype=torch.bfloat16)
    buffer[1:] = case.k.flatten()
    found = forgetting_attention(case.q, buffer[1:].view(case.k.shape), *case[2:4])
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-9)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = forgetting_attention(*case[:4])
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("options", [{}, {"adaptive_threshold": "auto"}, {"adaptive_threshold": "tight"}], ids=str)
@pytest.mark.parametrize(("B", "T", "H"), [(2, 1500, 4), (4, 4096, 11), (1, 20_000, 3)])
def test_gradients_repeat_beside_other_work(B: int, T: int, H: int, options: dict[str, Any], D: int) -> None:
    case = make_case("mixture", B, T, T, H, H, D, torch.bfloat16, "cuda")
    side, busy = torch.cuda.Stream(), torch.randn(4096, 4096, device="cuda")
    expected = output_and_gradients(forgetting_attention, case, **options)
    for i in range(20):
        with torch.cuda.stream(side):
            for _ in range(i % 4):
                busy @ busy
        found = output_and_gradients(forgetting_attention, case, **options)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True)), i
    torch.cuda.synchronize()


@pytest.mark.parametrize("D", [64, 128])
def test_gradients_in_any_order(D: int) -> None:
    case = make_case("mixture", 2, 1500, 1500, 4, 4, D, torch.bfloat16, "cuda")
    assert_right(partial(forgetting_attention, deterministic=False), case)


def test_65536_tokens_keep_their_digits() -> None:
    """Outputs and gradients at the end of a long sequence of strong gates are those of its tail alone."""
    T, tail, end = 65_536, 512, slice(-256, None)  # 256 gates of about -1 hide the rest
    case = make_case("one", 1, T, T, 1, 1, 64, torch.float32, "cuda")
    last = Case(*(x[:, -tail:] for x in case))
    exact = output_and_gradients(attend, last.to(torch.float64))
    assert errors([forgetting_attention(*case[:4])[:, end]], [exact[0][:, end]])[0] < 2e-6  # 1e-4 by sums in float32
    low, exact = case.to(torch.bfloat16), output_and_gradients(attend, last.to(torch.bfloat16).to(torch.float64))
    alone = output_and_gradients(forgetting_attention, last.to(torch.bfloat16))
    whole = output_and_gradients(forgetting_attention, low)
    off, allowed = (errors([x[:, end] for x in found], [x[:, end] for x in exact]) for found in (whole, alone))
    assert all(x <= 2 * y + 0.02 for x, y in zip(off, allowed, strict=True)), (off, allowed)


def test_compile_and_checkpoint() -> None:
    case = make_case("one", 1, 500, 500, 2, 2, 64, torch.bfloat16, "cuda")
    for rule in ("auto", "tight"):
        assert_right(torch.compile(partial(forgetting_attention, adaptive_threshold=rule), fullgraph=True), case)
    assert_right(partial(torch.utils.checkpoint.checkpoint, forgetting_attention, use_reentrant=False), case)


def apart(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Norm of the difference over the norm, per tensor."""
    return [((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(found, expected, strict=True)]


def hold_to_items_alone(B: int, T: int, H: int, D: int, device: str = "cuda", **options: Any) -> list[Tensor]:
    """Return what five sequences of a batch get in it is what each gets alone, bit by bit unless asked not to.

    Returns [o, dq, dk, dv, dlog_fgate] of the whole batch."""
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(B, T, H, D, device=device, dtype=torch.bfloat16) for _ in range(4))
    case = Case(q, k, v, torch.randn(B, T, H, device=device).add_(2).sigmoid_().log_(), do)
    leaves = [x.requires_grad_() for x in case[:4]]
    o = forgetting_attention(*leaves, **options)
    found = [o.detach(), *torch.autograd.grad(o, leaves, do)]
    for b in sorted({(B - 1) * i // 4 for i in range(5)}):
        alone = output_and_gradients(forgetting_attention, Case(*(x[b : b + 1].detach() for x in case)), **options)
        differences = apart([x[b : b + 1] for x in found], alone)
        most = 0.0 if options.get("deterministic", True) else 5e-3  # sums of dQ come in any order
        assert max(differences) <= most, (B, T, H, D, options, b, differences)
    return found


def test_large_batches() -> None:
    """In one test, one after the other: some take 45 GB."""
    for D in (32, 64, 128):
        many = hold_to_items_alone(32, 1024, 32, D, deterministic=False)  # 1,024 heads' sums contend
        quiet = hold_to_items_alone(32, 1024, 32, D)
        assert max(apart(many, quiet)) < 2e-2  # both round to bfloat16, each in its order
        del many, quiet
        hold_to_items_alone(21_845, 130, 3, D)  # the most sequences and heads; twice as many tiles and more
        hold_to_items_alone(21_845, 130, 3, D, adaptive_threshold="auto")
        hold_to_items_alone(65, 4096, 2**13 // D, D)  # offsets beyond 2^31
    x = torch.randn(21_845, 520, 3, 128, device="cuda", dtype=torch.bfloat16)  # two parts for each row of q and of k
    largest = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).amax(1)
    torch.testing.assert_close(triton_logit_bound(x, x, 1.0), largest**2, rtol=1e-4, atol=0.0)
    with pytest.raises(ValueError, match="Split the batch"):
        forgetting_attention(*(x[:16_384, :1, :, :64].repeat(1, 1, 2, 1) for _ in range(3)), x.new_zeros(16_384, 1, 6))


@pytest.mark.parametrize("gates", ["very local", "local", "near 0.5", "medium"])
@pytest.mark.parametrize("D", [64, 128])
def test_hopper_kernels_are_as_exact_as_those_of_other_gpus(D: int, gates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    regime = make_regime(3.0, gates, D)
    found = relative_errors(forgetting_attention, regime)
    monkeypatch.setattr(gpu, "_has_hopper_kernels", lambda q: False)
    exact = relative_errors(forgetting_attention, regime)
    assert max(x / y for x, y in zip(found, exact, strict=True)) < 1.5, (found, exact)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    regime=regimes(),
    D=st.sampled_from((64, 128)),
    dtype=st.sampled_from((torch.bfloat16, torch.float16)),
    length=st.integers(1, 1500),
    seed=st.integers(0, 10_000),
)
def test_no_counterexample(regime: Regime, D: int, dtype: torch.dtype, length: int, seed: int) -> None:
    if dtype == torch.float16:  # dS of large values leaves its range, as it would in any kernel
        regime = Regime(min(regime.logit, 30.0), regime.gates, 1.0, regime.limits)
    case, options = regime.make(length, D, dtype, "cuda", seed)
    assert_within(forgetting_attention, case, **options)
