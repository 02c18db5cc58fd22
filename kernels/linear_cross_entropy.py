"""Cross-entropy of a linear layer's logits without ever holding all of them in fp32.

Tokens are processed in chunks. Logits are in the hidden states' dtype; softmax statistics and the accumulated weight gradient
are in fp32. Up to 8 GiB of 16-bit logits are kept for the backward pass; the others are recomputed.

Suffixes: N tokens, d hidden size, V vocabulary."""

from typing import Any

import torch
from torch import Tensor

from kernels.attention_shared.arguments import as_autocast
from kernels.once_differentiable import once_differentiable

# Elements of the logits of a chunk: large enough to fill a GPU, small enough for a CPU's cache.
_CHUNK_CUDA = 2**28
_CHUNK_CPU = 2**21
# Elements of 16-bit logits kept for the backward pass: those of 85 thousand tokens with GPT-2's vocabulary.
_KEPT = 2**32
_IGNORED = -100


def linear_cross_entropy(hidden_Nd: Tensor, weight_Vd: Tensor, targets_N: Tensor) -> Tensor:
    """Compute the cross-entropy (N,), in nats and fp32, of the logits hidden @ weight.T, differentiable in hidden and weight.
    A target of -100 is ignored, as in PyTorch: its loss is 0."""
    (hidden_Nd,) = as_autocast(hidden_Nd)
    budget = (_CHUNK_CUDA if hidden_Nd.is_cuda else _CHUNK_CPU) // weight_Vd.shape[0]
    chunk = max(64, 1 << max(0, budget.bit_length() - 1))  # a power of two, so that most lengths give equal chunks
    wants_gradient = torch.is_grad_enabled() and (hidden_Nd.requires_grad or weight_Vd.requires_grad)
    kept = _KEPT // (chunk * weight_Vd.shape[0]) if wants_gradient and hidden_Nd.element_size() == 2 else 0
    function: type[torch.autograd.Function] = LinearCrossEntropy
    if hidden_Nd.is_cuda and hidden_Nd.dtype != torch.float64:
        from kernels.linear_cross_entropy_triton import FusedLinearCrossEntropy

        function = FusedLinearCrossEntropy
    ignored_N = targets_N == _IGNORED
    losses_N = function.apply(hidden_Nd, weight_Vd, targets_N.masked_fill(ignored_N, 0), chunk, kept)
    return losses_N.masked_fill(ignored_N, 0.0)


class LinearCrossEntropy(torch.autograd.Function):
    """Implementation in plain PyTorch, with the weight in hidden's dtype."""

    @staticmethod
    def forward(ctx: Any, hidden_Nd: Tensor, weight_Vd: Tensor, targets_N: Tensor, chunk: int, keep: int) -> Tensor:
        weight = weight_Vd.to(hidden_Nd.dtype)
        losses, logsums = [], []
        kept: list[Tensor] = []
        for hidden, target in zip(hidden_Nd.split(chunk), targets_N.split(chunk), strict=True):
            logits = hidden @ weight.t()
            exact = _at_least_fp32(logits)
            logsums.append(torch.logsumexp(exact, 1))
            losses.append(logsums[-1] - exact.gather(1, target[:, None])[:, 0])
            if len(kept) < keep:
                kept.append(logits)
        ctx.save_for_backward(hidden_Nd, weight_Vd, targets_N, torch.cat(logsums), *kept)
        ctx.chunk = chunk
        return torch.cat(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden_Nd, weight_Vd, targets_N, logsum_N, *kept = ctx.saved_tensors
        weight = weight_Vd.to(hidden_Nd.dtype)
        wants_weight = ctx.needs_input_grad[1]
        dhidden = torch.empty_like(hidden_Nd)
        dweight = torch.zeros_like(weight, dtype=logsum_N.dtype) if wants_weight else None
        column = torch.arange(len(weight), device=weight.device)
        for index, start in enumerate(range(0, len(targets_N), ctx.chunk)):
            rows = slice(start, start + ctx.chunk)
            hidden = hidden_Nd[rows]
            logits = kept[index] if index < len(kept) else hidden @ weight.t()
            probs = torch.exp(_at_least_fp32(logits) - logsum_N[rows, None])
            answer = (column == targets_N[rows, None]).to(probs.dtype)
            dlogits = ((probs - answer) * grads[0][rows, None]).to(logits.dtype)
            dhidden[rows] = dlogits @ weight
            if dweight is not None:
                dweight += _at_least_fp32(dlogits.t() @ hidden)
        return dhidden, None if dweight is None else dweight.to(weight_Vd.dtype), None, None, None


def _at_least_fp32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
