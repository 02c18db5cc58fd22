"""Answers to the synthetic recall task, sequence by sequence."""

import pandas as pd

from analysis.study import Study

KIND = "recall"


def answered(study: Study) -> pd.DataFrame:
    """One row a sequence: num_keys, model, seed, run_id, sequence, correct and stale (shares of the queries). ValueError
    where nothing is stored."""
    rows = study.stored(KIND, "recalls")
    return rows.assign(correct=rows["num_correct"] / rows["num_queries"], stale=rows["num_stale"] / rows["num_queries"])
