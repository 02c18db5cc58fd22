"""Table 7: Table 1 after training on short documents, with six accuracies."""

from analysis.fox.table1_lm_eval import draw, summary

__all__ = ["draw", "summary"]
