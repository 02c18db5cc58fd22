"""Models whose answers are known, and log-probabilities computed plainly."""

import math
from collections.abc import Sequence

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

VOCAB = 512


def llama(**sizes: int) -> LlamaForCausalLM:
    """A model of others, with logits so sharp that rounding decides nothing."""
    torch.manual_seed(0)
    small = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**{"vocab_size": VOCAB, **small, **sizes})).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(8.0)
    return model


class Uniform(nn.Module):
    """Every token is equally likely; remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[list[int]] = []

    def get_output_embeddings(self) -> None:
        return None

    def forward(self, input_ids, use_cache=False, logits_to_keep=0):
        self.shown += input_ids.tolist()
        return CausalLMOutputWithPast(logits=torch.zeros(len(input_ids), logits_to_keep or input_ids.shape[1], VOCAB))


class Copying(nn.Module):
    """Believes with probability 0.9 that the text goes on as it did after the last three tokens, where they stood before."""

    def forward(self, input_ids, use_cache=False):
        logits = torch.zeros(*input_ids.shape, VOCAB)
        for row, ids in zip(logits, input_ids.tolist(), strict=True):
            seen: dict[tuple[int, ...], int] = {}
            for at in range(3, len(ids)):
                last = tuple(ids[at - 2 : at + 1])
                if last in seen:
                    row[at, seen[last]] = math.log(0.9 / 0.1 * 511)
                if at + 1 < len(ids):
                    seen[last] = ids[at + 1]
        return CausalLMOutputWithPast(logits=logits)


def token_logps(model: nn.Module, ids: Sequence[int]) -> torch.Tensor:
    """Return the fp64 log-probability (T - 1,) of each of the ids after the first, from the whole logits."""
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([list(ids)])).logits[0, :-1].double()
    return logits_TV.log_softmax(-1).gather(1, torch.tensor(list(ids[1:]))[:, None])[:, 0]


def logp(model: nn.Module, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Return the log-probability of `answer` after `prompt`."""
    return float(token_logps(model, [*prompt, *answer])[-len(answer) :].sum())
