"""Table 8: Short-context downstream tasks, with windowed and hybrid models.

Zero-shot results at 760M parameters and 16B tokens. FoX is ahead of the Transformer of the same architecture on average and in
Wikitext perplexity, and of Samba, Transformer-SWA and Mamba-2; several margins are within noise."""

from functools import partial
from itertools import product

from analysis.harness import BOTH, ahead_on
from analysis.names import PAIRS
from analysis.verdict import Claim
from experiments.evaluations import short_tasks as evals  # noqa: F401
from experiments.fox.table1_lm_eval import summary  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import WITH_WINDOWS, with_shorter


def runs(scale, seeds):
    return recipes(with_shorter(scale)[0], WITH_WINDOWS, seeds)


c20 = partial(ahead_on, leads=[(*pair, column) for pair in PAIRS for column in BOTH])
BEATEN = ("samba", "transformer_swa", "mamba2")
c20b = partial(ahead_on, leads=list(product([fox for fox, _ in PAIRS], BEATEN, BOTH)))
CLAIMS = (
    Claim("C20", "FoX is ahead of the Transformer at 16B tokens, too: average and Wikitext", c20),
    Claim("C20b", "FoX is ahead of Samba, Transformer-SWA and Mamba-2: average and Wikitext", c20b),
)
