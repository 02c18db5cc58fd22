"""Parameters of a model that has no spec, counted as in the paper."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def num_params(model: "PreTrainedModel") -> int:
    """Count the parameters without the input embedding, but with the output head: the paper's "non-embedding" count."""
    embedding = sum(p.numel() for p in model.get_input_embeddings().parameters())
    return sum(p.numel() for p in model.parameters()) - embedding
