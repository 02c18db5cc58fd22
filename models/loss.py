"""Per-token cross-entropy of a causal language model without ever holding all of its logits.

Suffixes: B batch, T tokens, d hidden size, V vocabulary."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.linear_cross_entropy import linear_cross_entropy
from models.backbone import is_plain


class TokenLoss(nn.Module):
    """A causal language model as a module that returns losses: what DDP, FSDP2 and torch.compile wrap. Under FSDP2 the head's
    weight must belong to the outermost unit (shard the blocks, then this module)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, targets: Tensor) -> Tensor:
        """Return losses (B, T); see `token_losses`."""
        return token_losses(self.model, input_ids, targets)


def token_losses(model: Any, input_ids: Tensor, targets: Tensor) -> Tensor:
    """Return the loss in nats of each target given the inputs up to and including its own position: (B, T) fp32. Nothing is
    shifted: targets (B, T) are aligned with input_ids (B, T). Takes any Hugging Face causal language model; if its logits are
    more than a bias-free linear map of its hidden states, all of them are computed at once."""
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


_linear_heads: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _has_linear_head(model: Any) -> bool:
    """Tell whether logits = hidden @ W.T exactly: not if the head has an adapter or a hook, which may come at any time. Else it
    is true of the models here, and others are tested once, on four tokens."""
    head = model.get_output_embeddings()
    if head is None or not is_plain(head):
        return False
    if getattr(type(model), "has_linear_head", False):  # not of what a wrapper such as PEFT's holds
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
