"""Table 8: short-context downstream tasks of models on fewer tokens, with Samba and sliding-window attention among them."""

from analysis.harness import BOTH, ahead_on
from analysis.names import PAIRS
from analysis.study import Study
from analysis.verdict import Claim, Verdict
from experiments.evaluations import short_tasks as evals  # noqa: F401
from experiments.fox.table1_lm_eval import summary  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import WITH_WINDOWS, with_shorter

TITLE = "Short-context downstream tasks, with windowed and hybrid models"
PAPER = "Table 8"
SHOWS = (
    "Zero-shot results at 760M parameters and 16B tokens. FoX is ahead of the Transformer of the same architecture on average "
    "and in Wikitext perplexity, and of Samba, Transformer-SWA and Mamba-2; several margins are within noise."
)


def runs(scale, seeds):
    return recipes(with_shorter(scale)[0], WITH_WINDOWS, seeds)


def c20(study: Study) -> Verdict:
    """FoX is ahead of the Transformer of the same architecture on average and in Wikitext perplexity."""
    return ahead_on(study, [(*pair, column) for pair in PAIRS for column in BOTH])


def c20b(study: Study) -> Verdict:
    """FoX is ahead of Samba, Transformer-SWA and Mamba-2 on average and in Wikitext perplexity."""
    others = ("samba", "transformer_swa", "mamba2")
    return ahead_on(study, [(fox, other, column) for fox, _ in PAIRS for other in others for column in BOTH])


CLAIMS = (
    Claim("C20", "FoX is ahead of the Transformer at 16B tokens, too: average and Wikitext", c20),
    Claim("C20b", "FoX is ahead of Samba, Transformer-SWA and Mamba-2: average and Wikitext", c20b),
)
