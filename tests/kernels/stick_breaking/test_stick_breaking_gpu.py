"""The GPU kernels over the whole grid, against the float64 oracle."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from kernels.stick_breaking import reference_attention, stick_breaking_attention
from kernels.stick_breaking.autograd import attend
from kernels.stick_breaking.portable import backward as triton_backward
from tests.kernels.exact import errors, in_nan
from tests.kernels.stick_breaking.oracle import (
    REGIMES,
    Case,
    assert_right,
    make_case,
    make_nearly_used_up,
    output_and_gradients,
)

pytestmark = pytest.mark.gpu

LENGTHS = [(1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (1000, 1000), (4096, 4096), (1, 300), (63, 200), (1999, 2048)]


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """What the kernels allocate next holds NaN."""
    torch.full((64_000_000,), float("nan"), device="cuda")
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("Q", "T"), LENGTHS)
@pytest.mark.parametrize("D", [64, 128])
def test_lengths_and_regimes(D: int, Q: int, T: int, regime: str) -> None:
    assert_right(in_nan(stick_breaking_attention), make_case(regime, 2, Q, T, 2, 2, D, torch.bfloat16, "cuda"))


@pytest.mark.parametrize("key_heads", [1, 4])
@pytest.mark.parametrize("regime", ["long", "sinks", "huge"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("D", [16, 32, 64, 128])
def test_sizes_dtypes_groups_and_scales(D: int, dtype: torch.dtype, regime: str, key_heads: int) -> None:
    case = make_case(regime, 2, 300, 333, 4, key_heads, D, dtype, "cuda")
    assert_right(stick_breaking_attention, case, attend_current=True)
    if regime != "huge":
        assert_right(stick_breaking_attention, case, scale=2.0 / D)


@pytest.mark.parametrize("D", [32, 128])
def test_padding_and_documents(D: int) -> None:
    case = make_case("long", 2, 700, 900, 2, 2, D, torch.bfloat16, "cuda")
    assert_right(stick_breaking_attention, case, seq_start=torch.tensor([13, 650], device="cuda"))
    case = make_case("long", 1, 900, 900, 2, 2, D, torch.bfloat16, "cuda")
    ends = torch.tensor([0, 1, 130, 512, 900], device="cuda", dtype=torch.int32)
    assert_right(stick_breaking_attention, case, cu_seqlens=ends)


@pytest.mark.parametrize("T", [1, 127, 1000, 5000])
def test_one_token_decoding(T: int) -> None:
    case = make_case("long", 3, 1, T, 4, 2, 64, torch.bfloat16, "cuda")
    assert_right(stick_breaking_attention, case, seq_start=torch.tensor([0, T // 2, T], device="cuda"))


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("regime", ["random", "long"])
def test_16384_tokens(regime: str, D: int) -> None:
    assert_right(stick_breaking_attention, make_case(regime, 1, 16_384, 16_384, 2, 2, D, torch.bfloat16, "cuda"), tail=200)


def test_many_heads_at_once() -> None:
    """32 x 32 sequences and heads, as many programs as it takes to hang a kernel that waits for another."""
    case = make_case("long", 32, 1024, 1024, 32, 32, 32, torch.bfloat16, "cuda")
    first, again = (output_and_gradients(stick_breaking_attention, case) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    alone = Case(*(x[7:8, :, 5:6] for x in case))
    assert_right(stick_breaking_attention, alone)
    for x, y in zip(first, output_and_gradients(stick_breaking_attention, alone), strict=True):
        assert torch.equal(x[7:8, :, 5:6], y)


def test_used_up_sticks_are_skipped_but_not_too_soon() -> None:
    oldest = {}
    for regime in ("random", "long"):
        case = make_case(regime, 1, 4096, 4096, 2, 2, 64, torch.bfloat16, "cuda")
        oldest[regime] = attend(*case[:3], None, None, 0.125, False, "triton")[2][1]
    assert bool((oldest["random"][..., -1] > 3500).all() & (oldest["long"] == 0).all())
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
    from fla.ops.stickbreaking_attn import parallel_stickbreaking_attn

    def theirs(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        o, remainder = parallel_stickbreaking_attn(*inputs)
        return o, remainder.float()

    case = make_case("sinks", 2, 500, 500, 4, 2, 64, torch.bfloat16, "cuda")
    exact = output_and_gradients(reference_attention, case.to(torch.float64))
    ours, other = (errors(output_and_gradients(f, case), exact) for f in (stick_breaking_attention, theirs))
    assert all(x <= 1.1 * y + 1e-3 for x, y in zip(ours, other, strict=True)), (ours, other)


def test_compile_and_checkpoint() -> None:
    case = make_case("long", 1, 500, 500, 2, 2, 64, torch.bfloat16, "cuda")
    assert_right(torch.compile(lambda *x: stick_breaking_attention(*x), fullgraph=True), case)
    assert_right(partial(torch.utils.checkpoint.checkpoint, stick_breaking_attention, use_reentrant=False), case)
    inputs = [x.detach().requires_grad_() for x in case[:3]]
    torch.library.opcheck(torch.ops.kernels_stick_breaking.forward.default, (*inputs, None, None, 0.125, False, "triton"))
