"""What pruning skips: by layer and head, over training, and by training context (ACP)."""

from experiments.acp.acp_quality import PRUNED
from experiments.acp.acp_quality import runs as pairs
from experiments.evaluations import curve, skipped

TITLE = "What adaptive computation pruning skips"
PAPER = "ACP, pruning patterns"
SHOWS = (
    "The share of attention's tiles that is skipped, by layer and head, over training, and by training context. About 70% in "
    "all, more in longer contexts; many heads are local and skip nearly everything. The paper's own figures could not be "
    "obtained; their layout is ours."
)
CLAIMS = ("A1", "A2", "A7", "A8")


def runs(scale, seeds):
    return pairs(scale, seeds, (("pruned", PRUNED),))


def evals(scale):
    return skipped(scale) + curve(scale)
