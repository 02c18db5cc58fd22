"""Appendix F.8: Random seeds.

Per-token loss of FoX (Pro) and Transformer (Pro) with three seeds at the smallest size. Differences between seeds are small
compared with the lead of FoX. The paper's own captions could not be obtained."""

from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox.fig2_per_token_loss import draw, summary  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, SMALLS, TINIES, get_scale, sizes_at

SIZES = {TINIES: "tiny-narrow", SMALLS: "small-short", MINIS: "mini-narrow", PAPERS: "125m-2.7b"}
"""The smallest models of each setting."""


def runs(scale, seeds):
    return recipes(get_scale(sizes_at(scale, SIZES, __name__)), ("fox_pro", "transformer_pro"), sorted({0, 1, 2, *seeds}))
