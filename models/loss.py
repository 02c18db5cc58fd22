"""Per-token cross-entropy of a causal language model without ever holding all of its logits in fp32.

The head's matmul and the cross-entropy run in chunks of tokens. Logits are in the autocast dtype, softmax statistics in
fp32, and the head's gradient is summed in fp32. For the backward pass, 16-bit logits are kept, up to 8 GiB; others are
computed again.

Suffixes: B batch, T tokens, N = B * T, d hidden size, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Logits held at a time, in numbers: large enough to fill a GPU, small enough for a CPU's cache.
_CHUNK_CUDA = 2**28
_CHUNK_CPU = 2**21
# 16-bit logits kept for the backward pass, in numbers: those of 85 thousand tokens with GPT-2's vocabulary.
_KEPT = 2**32


class TokenLoss(nn.Module):
    """A causal language model as a module that returns losses: what DDP, FSDP2 and torch.compile wrap.

    Under FSDP2 the head's weight must belong to the outermost unit (shard the blocks, then this module).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, targets: Tensor) -> Tensor:
        """(B, T) losses; see `token_losses`."""
        return token_losses(self.model, input_ids, targets)


def token_losses(model: Any, input_ids: Tensor, targets: Tensor) -> Tensor:
    """Loss in nats of each target given the inputs up to and including its own position: (B, T) fp32.

    Nothing is shifted: targets (B, T) are aligned with input_ids (B, T). Works for the models here and for any
    Hugging Face causal language model; one whose logits are more than a bias-free linear map of its hidden states
    goes through its whole logits.
    """
    if input_ids.shape != targets.shape:
        raise ValueError(f"targets {tuple(targets.shape)} must have the shape of input_ids {tuple(input_ids.shape)}")
    if not _has_linear_head(model):
        logits_BTV = model(input_ids=input_ids, use_cache=False).logits
        rows = zip(logits_BTV.flatten(0, 1).split(4096), targets.flatten().split(4096), strict=True)
        losses = [F.cross_entropy(logits.float(), target, reduction="none") for logits, target in rows]
        return torch.cat(losses).view(targets.shape)
    hidden_BTd = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
    weight = model.get_output_embeddings().weight
    return linear_cross_entropy(hidden_BTd.flatten(0, 1), weight, targets.flatten()).view(targets.shape)


def linear_cross_entropy(hidden_Nd: Tensor, weight_Vd: Tensor, targets_N: Tensor) -> Tensor:
    """Cross-entropy (N,) fp32 of the logits hidden @ weight.T against targets, differentiable in hidden and weight."""
    device = hidden_Nd.device.type
    if torch.is_autocast_enabled(device):
        hidden_Nd = hidden_Nd.to(torch.get_autocast_dtype(device))
    budget = (_CHUNK_CUDA if hidden_Nd.is_cuda else _CHUNK_CPU) // weight_Vd.shape[0]
    chunk = max(64, 1 << max(0, budget.bit_length() - 1))  # a power of two, so that most lengths give equal chunks
    wants_gradient = torch.is_grad_enabled() and (hidden_Nd.requires_grad or weight_Vd.requires_grad)
    kept = _KEPT // (chunk * weight_Vd.shape[0]) if wants_gradient and hidden_Nd.element_size() == 2 else 0
    return _LinearCrossEntropy.apply(hidden_Nd, weight_Vd, targets_N, chunk, kept)


class _LinearCrossEntropy(torch.autograd.Function):
    """The weight is used in hidden's dtype with rows of zeros up to a multiple of 128: tensor cores want aligned logits,
    and GPT-2's 50257 columns otherwise take matmul kernels of a fifth of the speed. The extra logits are never read."""

    @staticmethod
    def forward(ctx: Any, hidden_Nd: Tensor, weight_Vd: Tensor, targets_N: Tensor, chunk: int, keep: int) -> Tensor:
        weight = _aligned(weight_Vd, hidden_Nd)
        losses, logsums = [], []
        kept: list[Tensor] = []
        for hidden, target in zip(hidden_Nd.split(chunk), targets_N.split(chunk), strict=True):
            logits = hidden @ weight.t()
            loss, logsum = _elementwise(_losses, hidden)(logits[:, : len(weight_Vd)], target)
            losses.append(loss)
            logsums.append(logsum)
            if len(kept) < keep:
                kept.append(logits)
        ctx.save_for_backward(hidden_Nd, weight_Vd, targets_N, torch.cat(logsums), *kept)
        ctx.chunk = chunk
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden_Nd, weight_Vd, targets_N, logsum_N, *kept = ctx.saved_tensors
        weight = _aligned(weight_Vd, hidden_Nd)
        wants_weight = ctx.needs_input_grad[1]
        dhidden = torch.empty_like(hidden_Nd)
        dweight = torch.zeros_like(weight, dtype=logsum_N.dtype) if wants_weight else None
        for index, start in enumerate(range(0, len(targets_N), ctx.chunk)):
            rows = slice(start, start + ctx.chunk)
            hidden, target, grad = hidden_Nd[rows], targets_N[rows], grads[0][rows].contiguous()
            logits = kept[index] if index < len(kept) else hidden @ weight.t()
            dlogits = _elementwise(_logit_gradients, hidden)(logits, logsum_N[rows], target, grad, len(weight_Vd))
            dhidden[rows] = dlogits @ weight
            if dweight is not None:
                _add_matmul_fp32(dweight, dlogits.t(), hidden)
        return dhidden, None if dweight is None else dweight[: len(weight_Vd)].to(weight_Vd.dtype), None, None, None


def _aligned(weight_Vd: Tensor, like: Tensor) -> Tensor:
    """The weight in the dtype of `like`; on CUDA with zero rows up to a multiple of 128."""
    missing = -len(weight_Vd) % 128 if like.is_cuda else 0
    return F.pad(weight_Vd.to(like.dtype), (0, 0, 0, missing))


def _losses(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and log of the sum of exponentials of each row, in at least fp32."""
    exact = _at_least_fp32(logits)
    logsum = torch.logsumexp(exact, 1)
    return logsum - exact.gather(1, target[:, None])[:, 0], logsum


def _logit_gradients(logits: Tensor, logsum: Tensor, target: Tensor, grad: Tensor, vocab_size: int) -> Tensor:
    """(softmax - one-hot) * grad in the logits' dtype; zero in the columns beyond the vocabulary."""
    column = torch.arange(logits.shape[1], device=logits.device)
    probs = torch.exp(_at_least_fp32(logits) - logsum[:, None])
    gradient = (probs - (column == target[:, None]).to(probs.dtype)) * grad[:, None]
    return gradient.masked_fill(column >= vocab_size, 0.0).to(logits.dtype)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def _elementwise(function: Callable[..., Any], like: Tensor) -> Callable[..., Any]:
    """The function as one fused kernel on CUDA, as it is on the CPU."""
    return _compiled(function) if like.is_cuda else function


def _at_least_fp32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _add_matmul_fp32(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b without rounding the product to a narrow input dtype."""
    if a.is_cuda and a.dtype in (torch.bfloat16, torch.float16):
        total += torch.mm(a, b, out_dtype=torch.float32)
    else:
        total += _at_least_fp32(a @ b)


_linear_heads: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _has_linear_head(model: Any) -> bool:
    """Whether logits = hidden @ W.T exactly: true of the models here; others are asked once, on four tokens."""
    if getattr(model, "has_linear_head", False):
        return True
    if model not in _linear_heads:
        _linear_heads[model] = _probe_head(model)
    return _linear_heads[model]


@torch.no_grad()
def _probe_head(model: Any) -> bool:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None or model.base_model is model:
        return False
    was_training = model.training
    model.eval()
    try:
        tokens = torch.arange(4, device=head.weight.device)[None] % head.out_features
        hidden = getattr(model.base_model(input_ids=tokens, use_cache=False), "last_hidden_state", None)
        logits = model(input_ids=tokens, use_cache=False).logits
        return hidden is not None and torch.allclose(head(hidden).float(), logits.float(), rtol=1e-3, atol=1e-3)
    finally:
        model.train(was_training)
