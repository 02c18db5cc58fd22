"""The elementwise half of the cross-entropy on a GPU: one kernel reads a row of logits for its loss and, while the row is still
in the cache, overwrites it with the gradient. The matrix products are left to cuBLAS.

Suffixes: N tokens, d hidden size, V vocabulary, C columns of a block."""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.once_differentiable import once_differentiable

# As fast as the fastest of seven settings on an H200 with GPT-2's vocabulary; the slowest takes 18% longer.
BLOCK, WARPS = 4096, 8
# Tensor cores need aligned rows: with GPT-2's 50257 columns, matrix products run at a fifth of the speed.
ALIGNMENT = 128


@triton.jit
def _cross_entropy_kernel(
    logits_ptr, target_ptr, loss_ptr, stride, columns, vocab_size, GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Process one row. Loads are bounded by `columns`, which includes the padding: a multiple of 16, unlike the vocabulary
    size, so that Triton can vectorise them."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    target = tl.load(target_ptr + row)
    lanes_C = tl.arange(0, BLOCK)
    top = -1e38  # finite: in a block of nothing but -inf, -inf - -inf would be NaN
    sum_C = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column_C = start + lanes_C
        x_C = tl.load(logits_ptr + column_C, mask=column_C < columns, other=0.0).to(tl.float32)
        x_C = tl.where(column_C < vocab_size, x_C, -float("inf"))
        above = tl.maximum(top, tl.max(x_C, 0))
        sum_C = sum_C * tl.exp(top - above) + tl.exp(x_C - above)
        top = above
    total = tl.sum(sum_C, 0)
    known = (target >= 0) & (target < vocab_size)
    answer = tl.load(logits_ptr + target, mask=known, other=float("nan")).to(tl.float32)
    tl.store(loss_ptr + row, tl.log(total) - (answer - top))
    if GRADIENT:
        tl.debug_barrier()  # every thread reads the target's logit before any thread overwrites it
        scale = 1.0 / total
        for start in range(0, columns, BLOCK):
            column_C = start + lanes_C
            inside_C = column_C < columns
            x_C = tl.load(logits_ptr + column_C, mask=inside_C, other=0.0).to(tl.float32)
            x_C = tl.exp(x_C - top) * scale - (column_C == target).to(tl.float32)
            x_C = tl.where(column_C < vocab_size, x_C, 0.0)
            tl.store(logits_ptr + column_C, x_C.to(logits_ptr.dtype.element_ty), mask=inside_C)


def cross_entropy_(logits_NV: Tensor, targets_N: Tensor, vocab_size: int, *, gradient: bool) -> Tensor:
    """Return the losses (N,) in fp32, NaN for a target outside the vocabulary. Logits from column `vocab_size` on are padding.
    `gradient`: overwrite the logits with the losses' derivatives, softmax - one-hot, zero in the padding."""
    loss_N = torch.empty(len(targets_N), dtype=torch.float32, device=logits_NV.device)
    _cross_entropy_kernel[(len(targets_N),)](
        logits_NV, targets_N, loss_N, logits_NV.stride(0), logits_NV.shape[1], vocab_size,
        GRADIENT=gradient, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return loss_N


class FusedLinearCrossEntropy(torch.autograd.Function):
    """Counterpart of `linear_cross_entropy.LinearCrossEntropy`. It keeps the logits' derivatives for the backward pass, without
    the upstream gradient, which instead scales the rows of dhidden, and of hidden in the product for the weight."""

    @staticmethod
    def forward(ctx: Any, hidden_Nd: Tensor, weight_Vd: Tensor, targets_N: Tensor, chunk: int, keep: int) -> Tensor:
        weight = _aligned(weight_Vd, hidden_Nd.dtype)
        losses: list[Tensor] = []
        kept: list[Tensor] = []
        for hidden, target in zip(hidden_Nd.split(chunk), targets_N.split(chunk), strict=True):
            logits = hidden @ weight.t()
            losses.append(cross_entropy_(logits, target, len(weight_Vd), gradient=len(kept) < keep))
            if len(kept) < keep:
                kept.append(logits)
        ctx.save_for_backward(hidden_Nd, weight_Vd, targets_N, *kept)
        ctx.chunk = chunk
        return torch.cat(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden_Nd, weight_Vd, targets_N, *kept = ctx.saved_tensors
        weight = _aligned(weight_Vd, hidden_Nd.dtype)
        dhidden = torch.empty_like(hidden_Nd)
        dweight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for index, start in enumerate(range(0, len(targets_N), ctx.chunk)):
            rows = slice(start, start + ctx.chunk)
            hidden, grad = hidden_Nd[rows], grads[0][rows, None]
            if index < len(kept):
                derivatives = kept[index]
            else:
                derivatives = hidden @ weight.t()
                cross_entropy_(derivatives, targets_N[rows], len(weight_Vd), gradient=True)
            dhidden[rows] = (derivatives @ weight) * grad
            if dweight is not None:
                _add_product(dweight, derivatives.t(), (hidden * grad).to(hidden.dtype))
        return dhidden, None if dweight is None else dweight[: len(weight_Vd)].to(weight_Vd.dtype), None, None, None


def _aligned(weight_Vd: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight in `dtype`, padded with zero rows to a multiple of ALIGNMENT."""
    return F.pad(weight_Vd.to(dtype), (0, 0, 0, -len(weight_Vd) % ALIGNMENT))


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Compute total += a @ b without rounding the product to a 16-bit dtype."""
    if a.dtype == torch.float32:
        total.addmm_(a, b)
    else:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
