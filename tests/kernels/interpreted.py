"""The smaller operations' GPU kernels on a CPU; run in a process of its own by `test_without_gpu`, as pytest."""

from functools import partial

import pytest
import torch

from kernels import causal_conv_triton, linear_cross_entropy_triton, ssd, ssd_chunks, ssd_triton
from kernels.causal_conv import causal_conv_silu
from kernels.selective_scan import selective_scan
from kernels.swiglu import swiglu
from tests.kernels import (
    quick_interpreter,
    test_causal_conv,
    test_fused_norms,
    test_linear_cross_entropy,
    test_selective_scan,
    test_ssd,
    test_swiglu,
)

quick_interpreter.prepare()


@pytest.fixture
def _on_a_gpu(monkeypatch):
    """Have tensors say so, so that public functions call their kernels."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)


@pytest.mark.usefixtures("_on_a_gpu")
@pytest.mark.parametrize("size", [1e-3, 1e4])
def test_norms(size):
    test_fused_norms.compare("cpu", torch.float32, 1e-5, size, lengths=(2, 33))


@pytest.mark.usefixtures("_on_a_gpu")
def test_swiglu_kernel():
    for size in (1e-3, 30.0):
        test_swiglu.compare(swiglu, "cpu", torch.float32, 1e-6, size)


@pytest.mark.usefixtures("_on_a_gpu")
def test_convolution(monkeypatch):
    monkeypatch.setattr(causal_conv_triton, "TOKENS", 8)
    monkeypatch.setattr(causal_conv_triton, "CHANNELS", 16)
    run = lambda *given: causal_conv_silu(*given)[0]  # noqa: E731
    test_causal_conv.compare(run, "cpu", torch.float32, 2e-6, (1, 3, 21), 21)


@pytest.mark.parametrize("keep", [0, 2])
def test_loss(keep, monkeypatch):
    """Chunks of logits kept, and computed again."""
    monkeypatch.setattr(linear_cross_entropy_triton, "BLOCK", 64)
    fused = linear_cross_entropy_triton.FusedLinearCrossEntropy

    def function(hidden, weight, targets):
        ignored = targets == -100
        return fused.apply(hidden, weight, targets.masked_fill(ignored, 0), 64, keep).masked_fill(ignored, 0.0)

    test_linear_cross_entropy.compare(torch.float32, rows=140, function=function)
    test_linear_cross_entropy.extremes("cpu")


def test_states_over_the_chunks_both_ways():
    """The last block is not full."""
    update, decay, start = torch.randn(2, 5, 16, 3, 24), torch.rand(2, 5, 3), torch.randn(2, 16, 3, 24)
    for reverse in (False, True):
        results = []
        for scan in (ssd_chunks.scan_loop, ssd_chunks.scan_kernel):
            states, final = torch.full_like(update, torch.nan), start.clone()
            scan(update, decay, states, final, reverse)
            results.append((states, final))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize(("seq_len", "decay", "sizes", "programs"), [
    (1, "mild", (16, 16, 3), 1), (150, "mixed", (32, 16, 3), 10**6), (150, "cut", (16, 32, 4), 9),  # 8 without
])  # fmt: skip
def test_mamba_2(seq_len, decay, sizes, programs, monkeypatch):
    """Several chunks, the last not full, heads in one program and in two: three cannot be halved, of four one halving is
    enough."""
    monkeypatch.setattr(ssd_triton, "PROGRAMS", programs)
    test_ssd.compare(ssd._Kernels.apply, 2e-3, seq_len, decay, sizes, torch.float16)


@pytest.mark.usefixtures("_on_a_gpu")
@pytest.mark.parametrize(("seq_len", "steps", "sizes", "dtype", "tolerance"), [
    (1, "mild", (5, 1), torch.float32, 3e-6), (5, "cut", (33, 3), torch.float32, 3e-6),
    (16, "tiny", (6, 16), torch.float32, 3e-6), (20, "mixed", (40, 16), torch.bfloat16, 6e-3),
    (41, "mild", (4, 5), torch.float32, 3e-6), (15, "large", (6, 16), torch.float32, 3e-6),
])  # fmt: skip
def test_mamba(seq_len, steps, sizes, dtype, tolerance):
    """Lengths around the steps that are unrolled; channels and states that fill no block, one, and more than one."""
    test_selective_scan.compare(selective_scan, tolerance, seq_len, steps, sizes, dtype)


@pytest.mark.usefixtures("_on_a_gpu")
def test_mamba_starts_from_zeros():
    test_selective_scan.starts_from_zeros(selective_scan, test_selective_scan.inputs(20))


def test_operators_are_what_torch_compile_takes_them_for():
    """Schema, shapes, the gradient's registration."""
    from kernels import fused_norms_triton, swiglu_triton

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).requires_grad_()

    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    check = partial(torch.library.opcheck, test_utils=tests)
    x, weight = leaf(1, 9, 2, 16), leaf(16)
    check(swiglu_triton.triton_swiglu, (leaf(3, 32),))
    check(fused_norms_triton.triton_shift_and_norm, (x, leaf(1, 9, 2), weight, torch.randn(1, 1, 2, 16), 1e-5))
    check(fused_norms_triton.triton_gated_norm, (x, None, leaf(32), 1e-5, False))
    check(fused_norms_triton.triton_norm_of_gated, (leaf(1, 9, 16), leaf(1, 9, 16), weight, 1e-5))
    check(causal_conv_triton.triton_causal_conv_silu, (leaf(1, 9, 16), leaf(16, 4), weight))
