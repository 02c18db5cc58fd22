"""Appendix F.6: the runs of Figure 6 beyond their training contexts."""

from experiments.fox.fig6_scale import evals, runs  # noqa: F401

TITLE = "Extrapolation over model sizes, tokens and contexts"
PAPER = "Appendix F.6"
SHOWS = "The runs of Figure 6, evaluated beyond their training contexts. The paper's own captions could not be obtained."
CLAIMS = ()
