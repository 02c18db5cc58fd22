"""The GPU kernels over the whole grid, against the float64 oracle."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels.stick_breaking import reference_attention, stick_breaking_attention
from kernels.stick_breaking.autograd import attend
from kernels.stick_breaking.portable import backward as triton_backward
from kernels.stick_breaking.visibility import first_visible_key
from tests.kernels.stick_breaking.oracle import (
    REGIMES,
    Case,
    allowed_errors,
    assert_right,
    errors,
    make_case,
    make_nearly_used_up,
    output_and_gradients,
)

pytestmark = pytest.mark.gpu

LENGTHS = [(1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (1000, 1000), (4096, 4096), (1, 300), (63, 200), (1999, 2048)]


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Return what the kernels allocate next holds NaN."""
    torch.full((64_000_000,), float("nan"), device="cuda")
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("Q", "T"), LENGTHS)
@pytest.mark.parametrize("D", [64, 128])
def test_lengths_and_regimes(D: int, Q: int, T: int, regime: str) -> None:
    assert_right(stick_breaking_attention, make_case(regime, 2, Q, T, 2, 2, D, torch.bfloat16, "cuda"))


@pytest.mark.parametrize("key_heads", [1, 4])
@pytest.mark.parametrize("regime", ["long", "sinks", "huge"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("D", [16, 32, 64, 128])
def test_sizes_dtypes_and_groups(D: int, dtype: torch.dtype, regime: str, key_heads: int) -> None:
    case = make_case(regime, 2, 300, 333, 4, key_heads, D, dtype, "cuda")
    assert_right(lambda *x: stick_breaking_attention(*x, attend_current=True), case, attend_current=True)


@pytest.mark.parametrize("D", [32, 128])
def test_padding_and_documents(D: int) -> None:
    case = make_case("long", 2, 700, 900, 2, 2, D, torch.bfloat16, "cuda")
    seq_start = torch.tensor([13, 650], device="cuda")
    first_key = first_visible_key(2, 700, 900, seq_start, None)
    assert_right(lambda *x: stick_breaking_attention(*x, seq_start=seq_start), case, first_key_BQ=first_key)
    case = make_case("long", 1, 900, 900, 2, 2, D, torch.bfloat16, "cuda")
    cu_seqlens = torch.tensor([0, 1, 130, 512, 900], device="cuda", dtype=torch.int32)
    first_key = first_visible_key(1, 900, 900, None, cu_seqlens)
    assert_right(lambda *x: stick_breaking_attention(*x, cu_seqlens=cu_seqlens), case, first_key_BQ=first_key)


@pytest.mark.parametrize("D", [16, 64, 128])
def test_views_into_nan(D: int) -> None:
    """Nothing around the tensors may be read into a result."""
    case = make_case("long", 2, 200, 300, 2, 2, D, torch.bfloat16, "cuda")

    def scatter(x: Tensor) -> Tensor:
        base = torch.full([n + 8 for n in x.shape], float("nan"), device=x.device, dtype=x.dtype)
        view = base[tuple(slice(0, n) for n in x.shape)]
        return view.copy_(x)

    leaves = [scatter(x).detach().requires_grad_() for x in case[:3]]
    outputs = stick_breaking_attention(*leaves)
    found = [*outputs, *torch.autograd.grad(outputs, leaves, [scatter(x) for x in case[3:]])]
    for x, y in zip(found, output_and_gradients(stick_breaking_attention, case), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("regime", ["random", "long"])
def test_16384_tokens(regime: str, D: int) -> None:
    """The end of a long sequence: its last queries and, as only they see them, its last keys."""
    T, tail = 16_384, 200
    case = make_case(regime, 1, T, T, 2, 2, D, torch.bfloat16, "cuda")
    last = Case(case.q[:, -tail:], case.k, case.v, case.do[:, -tail:], case.dr[:, -tail:])
    exact = output_and_gradients(reference_attention, last.to(torch.float64))
    found = output_and_gradients(stick_breaking_attention, case)
    assert all(bool(x.isfinite().all()) for x in found)
    gaps = errors([x[:, -tail:] for x in found], [x[:, -tail:] for x in exact])
    assert all(gap <= limit for gap, limit in zip(gaps, allowed_errors(last, exact), strict=True)), gaps


def test_many_heads_at_once() -> None:
    """32 x 32 sequences and heads, as many programs as it takes to hang a kernel that waits for another."""
    case = make_case("long", 32, 1024, 1024, 32, 32, 32, torch.bfloat16, "cuda")
    first = output_and_gradients(stick_breaking_attention, case)
    again = output_and_gradients(stick_breaking_attention, case)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    alone = Case(*(x[7:8, :, 5:6] for x in case))
    assert_right(stick_breaking_attention, alone)
    for x, y in zip(first, output_and_gradients(stick_breaking_attention, alone), strict=True):
        assert torch.equal(x[7:8, :, 5:6], y)


def test_used_up_sticks_are_skipped() -> None:
    case = make_case("random", 1, 4096, 4096, 2, 2, 64, torch.bfloat16, "cuda")
    oldest = attend(*case[:3], None, None, 0.125, False, "triton")[2][1]
    assert bool((oldest[..., -1] > 3500).all())
    case = make_case("long", 1, 4096, 4096, 2, 2, 64, torch.bfloat16, "cuda")
    assert bool((attend(*case[:3], None, None, 0.125, False, "triton")[2][1] == 0).all())


def test_a_stick_is_not_used_up_too_soon() -> None:
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 1e-2)):
        case = Case(*(x.cuda() for x in make_nearly_used_up(dtype, 20)))
        exact = reference_attention(*case.to(torch.float64)[:3])[0]
        torch.testing.assert_close(stick_breaking_attention(*case[:3])[0].double(), exact, rtol=tolerance, atol=0)


@pytest.mark.parametrize("D", [64, 128])
def test_queries_that_stop_early_among_others(D: int) -> None:
    case = make_case("random", 1, 2000, 2000, 2, 2, D, torch.bfloat16, "cuda")
    case.k[..., 0], case.q[..., 0] = 1.0, 2.0 * D**0.5
    for start in (320, 900, 1500):
        case.q[:, start : start + 70, :, 0] = -9.0 * D**0.5
    assert_right(stick_breaking_attention, case)


def test_heads_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("long", 2, 500, 500, 6, 3, 64, torch.bfloat16, "cuda")
    expected = output_and_gradients(stick_breaking_attention, case)
    monkeypatch.setattr(triton_backward, "WORKSPACE_BYTES", 2**17)
    assert all(torch.equal(x, y) for x, y in zip(output_and_gradients(stick_breaking_attention, case), expected, strict=True))


def test_agrees_with_flash_linear_attention() -> None:
    from fla.ops.stickbreaking_attn import parallel_stickbreaking_attn as theirs

    case = make_case("sinks", 2, 500, 500, 4, 2, 64, torch.bfloat16, "cuda")
    exact = output_and_gradients(reference_attention, case.to(torch.float64))
    ours = output_and_gradients(stick_breaking_attention, case)

    def in_their_dtype(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        o, remainder = theirs(*inputs)
        return o, remainder.float()

    for x, y, z in zip(ours, output_and_gradients(in_their_dtype, case), exact, strict=True):
        assert (x - y).norm() <= 2e-2 * z.norm()
        assert (x - z).norm() <= 1.1 * (y - z).norm() + 1e-3 * z.norm()


@pytest.mark.parametrize("T", [1, 127, 1000, 5000])
def test_one_token_decoding(T: int) -> None:
    case = make_case("long", 3, 1, T, 4, 2, 64, torch.bfloat16, "cuda")
    seq_start = torch.tensor([0, T // 2, T], device="cuda")
    first_key = first_visible_key(3, 1, T, seq_start, None)
    assert_right(lambda *x: stick_breaking_attention(*x, seq_start=seq_start), case, first_key_BQ=first_key)


def test_compile_checkpoint_autocast() -> None:
    case = make_case("long", 1, 500, 500, 2, 2, 64, torch.bfloat16, "cuda")
    assert_right(torch.compile(lambda *x: stick_breaking_attention(*x), fullgraph=True), case)
    assert_right(lambda *x: torch.utils.checkpoint.checkpoint(stick_breaking_attention, *x, use_reentrant=False), case)
    with torch.autocast("cuda", torch.bfloat16):
        assert stick_breaking_attention(*case.to(torch.float32)[:3])[0].dtype == torch.bfloat16
    inputs = [x.detach().requires_grad_() for x in case[:3]]
    torch.library.opcheck(torch.ops.kernels_stick_breaking.forward.default, (*inputs, None, None, 0.125, False, "triton"))


@pytest.mark.parametrize("D", [64, 128])
def test_memory_is_linear_beyond_the_workspace(D: int) -> None:
    def extra_bytes(T: int) -> int:
        case = make_case("long", 1, T, T, 4, 4, D, torch.bfloat16, "cuda")
        inputs = [x.requires_grad_() for x in case[:3]]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(stick_breaking_attention(*inputs), inputs, case[3:])
        return torch.cuda.max_memory_allocated() - before

    for T in (8192, 32_768):
        assert extra_bytes(T) <= triton_backward.WORKSPACE_BYTES + 4 * T * (4 * 2 * D + 64)
