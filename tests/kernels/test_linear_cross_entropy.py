"""Losses and gradients against float64, rounding, memory, and the GPU's kernel against plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import linear_cross_entropy as module
from kernels.linear_cross_entropy import linear_cross_entropy


def inputs(rows: int = 300, hidden: int = 24, vocab: int = 113, device: str = "cpu") -> list[Tensor]:
    torch.manual_seed(0)
    made = torch.randn(rows, hidden), torch.randn(vocab, hidden), torch.randint(vocab, (rows,)), torch.rand(rows)
    made[2][[0, 1, 70]] = torch.tensor([0, vocab - 1, -100])  # both ends of the vocabulary, and one that counts for nothing
    return [x.to(device) for x in made]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Logits in the dtype of the hidden states, or autocast's; softmax in fp32 at least."""
    logits = F.linear(hidden, weight.to(hidden.dtype))
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets, reduction="none")


def run(function, hidden: Tensor, weight: Tensor, targets: Tensor, upstream: Tensor) -> list[Tensor]:
    h, w = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    losses = function(h, w, targets)
    return [losses.detach(), *torch.autograd.grad((losses * upstream).sum(), (h, w))]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """64 rows at a time on a CPU, so that 300 rows are several chunks and a remainder."""
    monkeypatch.setattr(module, "_CHUNK_CPU", 1)


def compare(dtype, device="cpu", vocab=113, hidden=24, rows=300, function=linear_cross_entropy) -> None:
    """Relative to the norm of each, at most twice as wrong as plain PyTorch, whose logits are rounded alike; logits of a
    thousandth, of one and of hundreds of nats; the weight and its gradient in fp32."""
    for size in (1e-3, 1.0, 30.0):
        h, w, targets, upstream = inputs(rows, hidden, vocab, device)
        upstream[5:9] = 0
        given = (size * h).to(dtype), w
        exact = run(plain, *(x.double() for x in given), targets, upstream)
        ours, eager = (run(f, *given, targets, upstream) for f in (function, plain))
        assert [x.dtype for x in ours] == [torch.float32, dtype, torch.float32]
        assert not ours[0][70] and not ours[1][70].any()
        assert size > 1e-3 or (ours[2] != ours[2].bfloat16()).float().mean() > 0.3, "a sum in bf16 has no more digits"
        for mine, other, truth in zip(ours, eager, exact, strict=True):
            error, allowed = ((x.double() - truth).norm() / truth.norm() for x in (mine, other))
            assert error <= 2 * allowed + 1e-6, (size, error, allowed)


@pytest.mark.parametrize("kept", [0, 2 * 64 * 113, 2**32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_and_gradients_equal_fp64(dtype, kept, monkeypatch):
    """With no chunk of logits kept for the backward pass, two, and all."""
    monkeypatch.setattr(module, "_KEPT", kept)
    compare(dtype)


class LargestTensor(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def test_no_tensor_holds_all_logits():
    with LargestTensor() as largest:
        run(linear_cross_entropy, *inputs(rows=1000))
    assert largest.numel == max(1000 * 24, 64 * 113)


def extremes(device: str) -> None:
    """Rows with -inf in a whole block, with one logit far above all, with NaN, and with a target outside the vocabulary."""
    from kernels.linear_cross_entropy_triton import BLOCK, cross_entropy_

    logits = torch.zeros(4, BLOCK + 128, device=device)
    logits[0, :BLOCK], logits[1, 7], logits[2, 9] = -torch.inf, 1e4, torch.nan
    targets = torch.tensor([BLOCK + 5, 7, 3, BLOCK + 120], device=device)
    losses = cross_entropy_(logits, targets, BLOCK + 100, gradient=True)
    assert logits[0].isfinite().all()
    assert logits[0, BLOCK + 5].item() == pytest.approx(1 / 100 - 1)
    assert logits[:2, BLOCK + 100 :].count_nonzero() == 0, "the padding has no gradient"
    assert losses[:2].tolist() == pytest.approx([torch.tensor(100.0).log().item(), 0.0])
    assert losses[2:].isnan().all(), "a fault must show"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [113, 16384, 50257])
def test_the_kernel_equals_fp64_on_a_gpu(vocab, dtype, monkeypatch):
    torch.backends.cuda.matmul.allow_tf32 = False
    monkeypatch.setattr(module, "_CHUNK_CUDA", 64 * vocab)
    monkeypatch.setattr(module, "_KEPT", 2 * 64 * vocab)
    compare(dtype, "cuda", vocab, 256)
    extremes("cuda")
