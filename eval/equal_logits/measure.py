"""Equal logits: one call of the attention operator."""

import numpy as np
import pandas as pd
import torch

from eval.equal_logits.spec import Spec
from eval.runner.context import Context
from eval.runner.loading import Loaded
from models.forgetting_transformer.module import ForgettingAttention


@torch.no_grad()
def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return the weights by head and distance. ValueError for a model without attention layers of ours."""
    model = loaded.fresh()
    attention = next((module for module in model.modules() if isinstance(module, ForgettingAttention)), None)
    if attention is None:
        raise ValueError(f"{loaded.subject.model} is not an attention model and has no attention weights: choose another model")
    length, heads = attention.spec.head_dim, attention.spec.num_heads
    x_BTd = torch.zeros(1, length, attention.spec.hidden_size, device=context.device)
    q, k, _, log_fgate = attention.project(x_BTd, None, *model.model.shared_inputs(x_BTd, None, None))
    places_BTHD = torch.eye(length, device=context.device)[None, :, None].expand(1, -1, heads, -1).contiguous()
    weights_HT = attention.attend(q, k, places_BTHD, log_fgate, None)[0, -1].cpu().numpy()
    head, distance = np.indices((heads, length)).reshape(2, -1)
    weight = np.clip(weights_HT[:, ::-1].reshape(-1), 0.0, 1.0)
    return pd.DataFrame({"head": head, "distance": distance, "weight": weight})
