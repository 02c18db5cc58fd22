"""Learning rate as a function of tokens (paper, section 4; Appendix B)."""

import math

from training.spec import TrainSpec


def learning_rate(tokens_seen: int, spec: TrainSpec) -> float:
    """Return the rate for the step that starts after `tokens_seen` tokens: linear from 0 over the warm-up, then cosine to 0.

    The count is taken before the step, so the first step runs at exactly 0 and the last one slightly above 0.
    """
    if tokens_seen < spec.warmup_tokens:
        return spec.peak_lr * tokens_seen / spec.warmup_tokens
    progress = (tokens_seen - spec.warmup_tokens) / (spec.train_tokens - spec.warmup_tokens)
    return spec.peak_lr * 0.5 * (1 + math.cos(math.pi * progress))
