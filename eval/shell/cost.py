"""What an evaluation costs, for a plan: forward FLOPs as the paper counts them. Torch-free."""

from models.spec import ModelSpec


def forward_flops(model: ModelSpec, num_tokens: float, seq_len: int) -> float:
    """Of `num_tokens` tokens in sequences of `seq_len`."""
    return float(num_tokens) * model.flops_per_token(seq_len)
