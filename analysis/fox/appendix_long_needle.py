"""Appendix F.5: Figure 4 for longer texts."""

from analysis.fox.fig4_needle import draw, summary

__all__ = ["draw", "summary"]
