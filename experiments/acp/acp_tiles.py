"""Figure 1 of the ACP paper: the tiles of the attention logits that are computed, without and with pruning."""

from experiments.acp.acp_pruned_share import runs as pruned
from experiments.evaluations import skipped as evals  # noqa: F401

TITLE = "Tiles that pruning skips"
PAPER = "ACP, Figure 1"
SHOWS = (
    "The tiles of the logits that the kernel computes, without pruning and with it. For every block of queries the skipped "
    "ones are a prefix, whose end never moves back. The paper draws a sketch; these are heads of a trained model on real text."
)
CLAIMS = ()


def runs(scale, seeds):
    return list(pruned(scale, seeds[:1]))[-1:]
