"""Answers to the synthetic recall task, sequence by sequence."""

import re

import pandas as pd

from analysis.study import Study

KIND = "recall"


def keys_of(label: str) -> int:
    """16 of "16 keys". ValueError otherwise."""
    found = re.fullmatch(r"(\d+) keys", label)
    if not found:
        raise ValueError(f"label {label!r} names no size of the recall task; expected one like '16 keys'")
    return int(found[1])


def answered(study: Study) -> pd.DataFrame:
    """One row a sequence: num_keys, model, seed, run_id, sequence, correct and stale (shares of the queries). ValueError
    where nothing is stored."""
    rows = study.rows(KIND)
    if rows.empty:
        raise ValueError(f"{study.stem}: no recall is stored; run its experiment first")
    return rows.assign(
        num_keys=rows["label"].map(keys_of),
        correct=rows["num_correct"] / rows["num_queries"],
        stale=rows["num_stale"] / rows["num_queries"],
    )
