"""Speed and memory of generation after long prompts, which the papers do not have: FoX against softmax and recurrent models."""

from experiments.evaluations import generation_times as evals  # noqa: F401
from experiments.recipes import recipes

TITLE = "Speed and memory of generation"
PAPER = "beyond the paper"
SHOWS = (
    "Tokens per second of reading a prompt and of decoding after it, and peak memory, by the prompt's length, with fresh "
    "weights. Not in the paper: it says only that FoX needs no more than softmax attention."
)
CLAIMS = ()


def runs(scale, seeds):
    for model in ("fox_pro", "transformer_pro", "transformer_llama", "mamba2", "delta_net"):
        yield from recipes(scale, model, seeds[:1])
