"""Tight pruning, which keeps ACP's promise with another bound: what it skips, its speed and its loss, beside ACP's own rule."""

from experiments.acp.acp_quality import PRUNED
from experiments.acp.acp_quality import runs as pairs
from experiments.evaluations import loss, pruned_times, skipped

TITLE = "Tight pruning beside adaptive computation pruning"
PAPER = "beyond the papers"
SHOWS = (
    "Both rules promise that no query loses more than e^-10 of its probability. The paper's knows of a head how large its "
    "logits can be; the tight one adds up, tile by tile, what the newest keys weigh and what the gates leave of the others. "
    "FoX (Pro) trained with each, at three training contexts. Not in the papers."
)
CLAIMS = ()


def runs(scale, seeds):
    return pairs(scale, seeds, (("pruned", PRUNED), ("tightly pruned", PRUNED | dict(prune_tightly=True))))


def evals(scale):
    return loss(scale) + skipped(scale) + pruned_times(scale)
