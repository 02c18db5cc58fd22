"""Figure 1: the FoX block and its attention layer, drawn from the parameters of the model that the suite builds."""

from experiments.evaluations import parts as evals  # noqa: F401
from experiments.recipes import recipes

TITLE = "The FoX block"
PAPER = "Figure 1"
SHOWS = (
    "Left: a FoX block. Right: an attention layer of FoX (Pro), and beside it that of FoX (LLaMA). Every RMSNorm of the layer "
    "is per head; ShiftLinear mixes the previous token's projection into keys and values. Drawn from the parameters that the "
    "models have as they are built here."
)
CLAIMS = ()


def runs(scale, seeds):
    for model in ("fox_pro", "fox_llama"):
        yield from recipes(scale, model, seeds[:1])
