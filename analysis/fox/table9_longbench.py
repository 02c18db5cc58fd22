"""Table 9: Table 2 for other models and fewer tokens."""

from analysis.fox.table2_longbench import draw, summary

__all__ = ["draw", "summary"]
