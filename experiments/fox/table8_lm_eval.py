"""Table 8: short-context downstream tasks of models on fewer tokens, with Samba and sliding-window attention among them."""

from experiments.evaluations import short_tasks as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import WITH_WINDOWS, with_shorter

TITLE = "Short-context downstream tasks, with windowed and hybrid models"
PAPER = "Table 8"
SHOWS = (
    "Zero-shot results at 760M parameters and 16B tokens. FoX is ahead of the Transformer of the same architecture on average "
    "and in Wikitext perplexity, and of Samba, Transformer-SWA and Mamba-2; several margins are within noise."
)
CLAIMS = ("C20", "C20b")


def runs(scale, seeds):
    for model in WITH_WINDOWS:
        yield from recipes(with_shorter(scale)[0], model, seeds)
