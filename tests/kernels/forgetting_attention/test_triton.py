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
from tests.kernels.exact import in_nan
from tests.kernels.forgetting_attention.oracle import GATES, Case, assert_right, attend, errors, make_case, output_and_gradients
from tests.kernels.forgetting_attention.regimes import (
    GRID,
    Regime,
    assert_decoding_within,
    assert_within,
    out_of_range,
    overflow_of_a_training,
    regimes,
)

pytestmark = pytest.mark.gpu

LENGTHS = [(1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (127, 127), (1000, 1000), (2048, 2048), (4096, 4096)]
SHORTER_QUERIES = [(1, 300), (63, 200), (128, 1000), (1000, 1100), (1999, 2048)]


@pytest.fixture(autouse=True)
def _poisoned_memory() -> None:
    """Return what the kernels allocate next holds NaN."""
    torch.full((64_000_000,), float("nan"), device="cuda")


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize(("Q", "T"), LENGTHS + SHORTER_QUERIES)
@pytest.mark.parametrize("D", [64, 128])
def test_lengths_and_gates(D: int, Q: int, T: int, gates: str) -> None:
    assert_right(forgetting_attention, make_case(gates, 2, Q, T, 2, 2, D, torch.bfloat16, "cuda"))


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("gates", ["mixture", "zero", "twenty"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("D", [16, 32, 64, 128])
def test_sizes_dtypes_and_groups(D: int, dtype: torch.dtype, gates: str, key_heads: int) -> None:
    """With the default scale and with another."""
    case = make_case(gates, 2, 300, 333, 4, key_heads, D, dtype, "cuda")
    for options in ({}, {"scale": 3.0 / D}):
        assert_right(forgetting_attention, case, **options)


@pytest.mark.parametrize("D", [16, 64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_any_strides_amid_nan(dtype: torch.dtype, D: int) -> None:
    case = make_case("mixture", 2, 200, 300, 2, 2, D, dtype, "cuda")
    assert_right(in_nan(forgetting_attention), case)
    assert_right(forgetting_attention, Case(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in case)))


@pytest.mark.parametrize("D", [32, 64, 128])
@pytest.mark.parametrize("window", [None, 1, 70, 500])
def test_window_padding_and_documents(window: int | None, D: int) -> None:
    case = make_case("near_zero", 2, 700, 900, 2, 2, D, torch.bfloat16, "cuda")  # a key too many is not decayed away
    seq_start = torch.tensor([13, 650], device="cuda")
    assert_right(forgetting_attention, case, seq_start=seq_start, window_size=window)
    case = make_case("near_zero", 1, 900, 900, 2, 2, D, torch.bfloat16, "cuda")
    cu_seqlens = torch.tensor([0, 1, 130, 512, 900], device="cuda", dtype=torch.int32)
    assert_right(forgetting_attention, case, cu_seqlens=cu_seqlens, window_size=window)


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
    # A threshold that drops what matters: exactly the same tiles as the oracle.
    assert_right(forgetting_attention, case, adaptive_threshold=-0.05)


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("T", [1, 127, 1000, 5000])
def test_one_token_decoding(T: int, gates: str) -> None:
    case = make_case(gates, 3, 1, T, 4, 2, 64, torch.bfloat16, "cuda")
    seq_start = torch.tensor([0, T // 2, T], device="cuda")
    for window in (None, 70):
        options = {"seq_start": seq_start, "window_size": window}
        exact = attend(*case.to(torch.float64)[:4], **options)
        found = forgetting_attention(*case[:4], **options)
        eager = attend(*case[:4], **options)
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
            assert_right(forgetting_attention, case)
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
    """Gate gradients and outputs at the end of a long sequence of strong gates equal those of its tail alone."""
    T, tail = 65_536, 512
    case = make_case("one", 1, T, T, 1, 1, 64, torch.float32, "cuda")
    last = Case(*(x[:, -tail:] for x in case))
    exact = attend(*last.to(torch.float64)[:4])[:, -256:]  # 256 gates of about -1 hide the rest
    assert errors([forgetting_attention(*case[:4])[:, -256:]], [exact])[0] < 2e-6
    naive = case.log_fgate.cumsum(1)[0, -tail:, 0]
    decay = (naive[:, None] - naive)[-256:].double()
    logits = torch.einsum("qd,kd->qk", last.q[0, -256:, 0].double(), last.k[0, :, 0].double()) / 8 + decay
    hidden = torch.ones(256, tail, device="cuda").triu(tail - 255).bool()
    weights = logits.masked_fill(hidden, -torch.inf).softmax(-1)
    assert (weights @ last.v[0, :, 0].double() - exact[0, :, 0]).abs().max() > 1e-4  # what a float32 sum would give
    low = case.to(torch.bfloat16)
    tail_grads = output_and_gradients(forgetting_attention, Case(*(x[:, -tail:] for x in low)))
    exact_grads = output_and_gradients(attend, last.to(torch.bfloat16).to(torch.float64))
    found = output_and_gradients(forgetting_attention, low)
    for name, whole, part, truth in zip(("o", "dq", "dk", "dv", "dg"), found, tail_grads, exact_grads, strict=True):
        own = (part[:, -256:].double() - truth[:, -256:]).abs().max()
        assert (whole[:, -256:].double() - truth[:, -256:]).abs().max() <= 2 * own + 0.02, name


def test_compile_and_checkpoint() -> None:
    case = make_case("one", 1, 500, 500, 2, 2, 64, torch.bfloat16, "cuda")
    for name in ("auto", "tight"):
        compiled = torch.compile(lambda *x, name=name: forgetting_attention(*x, adaptive_threshold=name), fullgraph=True)
        assert_right(compiled, case)
    assert_right(partial(torch.utils.checkpoint.checkpoint, forgetting_attention, use_reentrant=False), case)
    inputs = [x.detach().requires_grad_() for x in case[:4]]
    operator = torch.ops.kernels_forgetting_attention.forward.default
    torch.library.opcheck(
        operator,
        (*inputs, None, -10.0, None, None, None, 0.125, False, "triton"),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


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


@pytest.mark.parametrize("regime", GRID, ids=str)
@pytest.mark.parametrize("D", [32, 64, 128])
def test_every_regime(D: int, regime: Regime) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        case, options = regime.make(700, D, dtype, "cuda", seed=4)
        assert_within(forgetting_attention, case, **options)
        if regime.limits != "documents":
            assert_decoding_within(forgetting_attention, case, **options)


def test_what_left_the_range_is_right() -> None:
    for case in (*out_of_range("cuda"), overflow_of_a_training("cuda")):
        assert_within(forgetting_attention, case)


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
