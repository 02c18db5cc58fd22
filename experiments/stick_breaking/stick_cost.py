"""What stick-breaking costs: its kernels against softmax with RoPE, and a training step of the models."""

from experiments.evaluations import step_times as evals  # noqa: F401
from experiments.recipes import recipes

TITLE = "Cost of stick-breaking attention"
PAPER = "Stick-breaking: kernel timing"
SHOWS = (
    "Left: forward and backward of the operators, as `python -m kernels.benchmark times` measured them, relative to "
    "softmax with rotary embedding. Right: a training step at this scale. The paper's kernel is reported 1.2 to 1.3 times as "
    "slow as FlashAttention with RoPE."
)
CLAIMS = ("S5",)


def runs(scale, seeds):
    for model in ("stick_breaking", "transformer_llama", "fox_llama"):
        yield from recipes(scale, model, seeds[:1])
