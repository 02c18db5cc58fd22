"""Table 7: models trained on short documents at a context of 2,048, on the harness's tasks."""

from experiments.evaluations import six_tasks as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MODELS, get_scale

TITLE = "Short-context training on SlimPajama"
PAPER = "Table 7"
SHOWS = (
    "About 340M parameters, 15B tokens of SlimPajama, context 2,048. FoX (Pro) has the best average and Wikitext perplexity; "
    "FoX is ahead of the Transformer of the same architecture on average. The paper leaves tokeniser, batch, learning rate and "
    "schedule open: here a byte-level BPE of 32,000 and otherwise the 360M setting; documents are packed behind BOS, and "
    "attention and states go on over it."
)
CLAIMS = ("C20c",)


def runs(scale, seeds):
    for model in MODELS[:5]:
        yield from recipes(get_scale(scale.packed), model, seeds)
