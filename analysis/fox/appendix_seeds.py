"""Appendix F.8: Figure 2 with several seeds, whose spread its bands and its table show."""

from analysis.fox.fig2_per_token_loss import draw, summary

__all__ = ["draw", "summary"]
