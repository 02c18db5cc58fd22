"""Appendix F.5: Needle in longer texts.

The easy needle for FoX (Pro) and Transformer (Pro) up to 65,536 tokens, four times the training context. The released code
draws such a grid, but its cells are not known: these are eleven lengths at the paper's depths."""

from dataclasses import replace

from experiments.evaluations import needles
from experiments.fox.fig4_needle import draw, summary  # noqa: F401
from experiments.recipes import lines
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at

SIZES = {TINIES: 1024, MINIS: 16384, PAPERS: 65536}
"""Length of the longest text in tokens."""
runs = lines("fox_pro", "transformer_pro")


def evals(scale):
    """The easy needle at eleven lengths."""
    grid = scale.needle
    step = (sizes_at(scale, SIZES, __name__) - grid.lengths[0]) // 10
    lengths = tuple(grid.lengths[0] + step * place for place in range(11))
    return needles(replace(scale, needle=replace(grid, lengths=lengths, recall_lengths=None)), modes=("easy",))
