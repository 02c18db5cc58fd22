"""Table 6: parameters, FLOPs and training throughput of all seven models, measured on the device that evaluates."""

from experiments.evaluations import step_times as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MODELS

TITLE = "Parameters, FLOPs and training throughput"
PAPER = "Table 6"
SHOWS = (
    "Parameters without the input embedding, forward FLOPs per token, and training tokens per second on four L40S GPUs. The "
    "recurrent models are fastest; among the softmax models only Transformer (LLaMA) used a tuned kernel, so throughputs "
    "are comparable only as ratios between models with the same kernel."
)
CLAIMS = ("C27", "C28", "C29", "C30")


def runs(scale, seeds):
    for model in MODELS:
        yield from recipes(scale, model, seeds[:1])
