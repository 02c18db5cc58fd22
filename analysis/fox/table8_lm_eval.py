"""Table 8: Table 1 for other models and fewer tokens."""

from analysis.fox.table1_lm_eval import draw, summary

__all__ = ["draw", "summary"]
