"""Appendix F.4: Figure 2 for the models of Tables 8 and 9."""

from analysis.fox.fig2_per_token_loss import draw, summary

__all__ = ["draw", "summary"]
