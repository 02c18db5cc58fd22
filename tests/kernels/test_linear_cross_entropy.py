"""Losses and gradients against fp64, rounding, memory, and the GPU's kernel against plain PyTorch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import linear_cross_entropy as module
from kernels.linear_cross_entropy import linear_cross_entropy


def inputs(rows: int = 300, hidden: int = 24, vocab: int = 113):
    torch.manual_seed(0)
    return torch.randn(rows, hidden), torch.randn(vocab, hidden), torch.randint(vocab, (rows,)), torch.rand(rows)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """64 rows at a time, so that 300 rows are several chunks and a remainder."""
    monkeypatch.setattr(module, "_CHUNK_CPU", 1)


def test_losses_are_exact_and_gradients_close_to_fp64():
    hidden, weight, targets, upstream = inputs()
    results = []
    for dtype in (torch.float32, torch.float64):
        h, w = (x.to(dtype).requires_grad_() for x in (hidden, weight))
        expected = F.cross_entropy(h @ w.T, targets, reduction="none")
        grads = torch.autograd.grad((expected * upstream).sum(), (h, w))
        results.append((expected.detach(), *grads))
    h, w = hidden.requires_grad_(), weight.requires_grad_()
    ours = linear_cross_entropy(h, w, targets)
    ours_all = (ours.detach(), *torch.autograd.grad((ours * upstream).sum(), (h, w)))
    for mine, eager, exact in zip(ours_all, *results, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-6


def test_autocast_computes_logits_in_bf16_and_sums_the_weight_gradient_in_fp32():
    hidden, weight, targets, upstream = inputs(rows=2000)
    h64, w64 = hidden.double().requires_grad_(), weight.double().requires_grad_()
    exact_loss = F.cross_entropy(h64 @ w64.T, targets, reduction="none")
    exact = (exact_loss.detach(), *torch.autograd.grad((exact_loss * upstream).sum(), (h64, w64)))

    def run(function):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            losses = function(h, w)
        return (losses.detach(), *torch.autograd.grad((losses * upstream).sum(), (h, w)))

    ours = run(lambda h, w: linear_cross_entropy(h, w, targets))
    eager = run(lambda h, w: F.cross_entropy(F.linear(h, w).float(), targets, reduction="none"))
    for mine, other, truth in zip(ours, eager, exact, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - truth).abs().max() <= 2 * (other - truth).abs().max() + 1e-3
    assert (ours[2] != ours[2].bfloat16()).float().mean() > 0.9, "a sum in bf16 has no digits beyond bf16's"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_target_of_minus_100_counts_for_nothing(device):
    hidden, weight, targets, upstream = (x.to(device) for x in inputs())
    targets[[0, 70, 299]] = -100
    found = []
    for function in (linear_cross_entropy, lambda h, w, t: F.cross_entropy(h @ w.T, t, reduction="none")):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        losses = function(h, w, targets)
        found.append((losses.detach(), *torch.autograd.grad((losses * upstream).sum(), (h, w))))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert not found[0][0][targets == -100].any() and not found[0][1][targets == -100].any()


def test_kept_and_recomputed_logits_give_the_same_gradients(monkeypatch):
    hidden, weight, targets, upstream = inputs()
    found = []
    for kept in (0, 2 * 64 * 113, 2**32):
        monkeypatch.setattr(module, "_KEPT", kept)
        h, w = hidden.bfloat16().requires_grad_(), weight.clone().requires_grad_()
        with MatrixProducts() as products:
            losses = linear_cross_entropy(h, w, targets)
            found.append(torch.autograd.grad((losses * upstream).sum(), (h, w)))
        chunks = 5
        assert products.count == 3 * chunks + max(0, chunks - kept // (64 * 113))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


class MatrixProducts(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


class LargestTensor(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def test_no_tensor_holds_all_logits():
    hidden, weight, targets, _ = inputs(rows=1000)
    with LargestTensor() as largest:
        linear_cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), targets).mean().backward()
    assert largest.numel == max(1000 * 24, 64 * 113)


def run_in(dtype: torch.dtype, function: Any, hidden: Tensor, weight: Tensor, upstream: Tensor, *rest: Any) -> list[Tensor]:
    """Losses and gradients with hidden states in `dtype`, weights in fp32 or wider."""
    h, w = hidden.to(dtype).requires_grad_(), weight.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    losses = function.apply(h, w, *rest)
    return [losses.detach(), *torch.autograd.grad((losses * upstream).sum(), (h, w))]


def compare_with_plain(device: str, dtype: torch.dtype, vocab: int = 113, hidden_size: int = 24, rows: int = 300) -> None:
    """The kernel's losses and gradients against fp64, relative to the norm of each: at most twice as wrong as plain PyTorch in
    the same dtype, whose logits are rounded alike. Some chunks kept, some computed again; logits of one and of hundreds of
    nats; targets at both ends of the vocabulary."""
    from kernels.linear_cross_entropy_triton import FusedLinearCrossEntropy

    for size, keep in ((1.0, 2), (1e-3, 0), (30.0, 9)):
        hidden, weight, targets, upstream = (x.to(device) for x in inputs(rows, hidden_size, vocab))
        targets[:2] = torch.tensor([0, vocab - 1])
        upstream[5:9] = 0  # masked targets
        arguments = ((size * hidden).to(dtype), weight.to(dtype), upstream, targets, 64, keep)
        exact = run_in(torch.float64, module.LinearCrossEntropy, *arguments)
        ours = run_in(dtype, FusedLinearCrossEntropy, *arguments)
        plain = run_in(dtype, module.LinearCrossEntropy, *arguments)
        for name, truth, *both in zip(("loss", "d hidden", "d weight"), exact, ours, plain, strict=True):
            error, allowed = ((x.double() - truth).norm() / truth.norm() for x in both)
            assert error <= 2 * allowed + 1e-6, (size, keep, name, error, allowed)


def losses_of_extremes(device: str) -> Tensor:
    """Losses by the kernel of rows with -inf in a whole block, with one logit far above all, with NaN, and with a target
    outside the vocabulary."""
    from kernels.linear_cross_entropy_triton import BLOCK, cross_entropy_

    logits = torch.zeros(4, BLOCK + 128, device=device)
    logits[0, :BLOCK] = -torch.inf
    logits[1, 7] = 1e4
    logits[2, 9] = torch.nan
    targets = torch.tensor([BLOCK + 5, 7, 3, BLOCK + 120], device=device)
    losses = cross_entropy_(logits, targets, BLOCK + 100, gradient=True)
    assert logits[0].isfinite().all()
    assert logits[0, BLOCK + 5].item() == pytest.approx(1 / 100 - 1)
    assert logits[:2, BLOCK + 100 :].count_nonzero() == 0, "the padding has no gradient"
    return losses.cpu()


def assert_right_extremes(losses: Tensor) -> None:
    assert losses[:2].tolist() == pytest.approx([torch.tensor(100.0).log().item(), 0.0])
    assert losses[2:].isnan().all(), "a fault must show"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [113, 16384, 50257])
def test_the_kernel_equals_plain_pytorch_on_a_gpu(vocab, dtype):
    torch.backends.cuda.matmul.allow_tf32 = False
    compare_with_plain("cuda", dtype, vocab, 256)


@pytest.mark.gpu
def test_extremes_on_a_gpu():
    assert_right_extremes(losses_of_extremes("cuda"))


@pytest.mark.gpu
def test_gradient_of_an_unaligned_vocabulary_is_as_good_as_torch_s():
    """GPT-2's 50257 columns, padded for speed, against fp64; no worse than twice torch's own bf16 computation."""
    torch.manual_seed(0)
    hidden = torch.randn(3000, 256, device="cuda", dtype=torch.bfloat16)
    weight = 0.05 * torch.randn(50257, 256, device="cuda")
    targets = torch.randint(50257, (3000,), device="cuda")
    upstream = torch.rand(3000, device="cuda")

    def run(function, dtype):
        h, w = hidden.to(dtype).requires_grad_(), weight.to(dtype if dtype == torch.float64 else torch.float32).requires_grad_()
        losses = function(h, w)
        return losses.detach(), *torch.autograd.grad((losses * upstream).sum(), (h, w))

    exact = run(lambda h, w: F.cross_entropy(h @ w.t(), targets, reduction="none"), torch.float64)
    torch_s = run(lambda h, w: F.cross_entropy((h @ w.t().to(h.dtype)).float(), targets, reduction="none"), torch.bfloat16)
    ours = run(lambda h, w: linear_cross_entropy(h, w, targets), torch.bfloat16)
    for name, mine, other, reference in zip(("loss", "d hidden", "d weight"), ours, torch_s, exact, strict=True):
        error, allowed = ((x.double() - reference).norm() / reference.norm() for x in (mine, other))
        print(f"{name}: ours {error:.2e}, torch's {allowed:.2e}")
        assert error <= 2 * allowed + 1e-6, name
