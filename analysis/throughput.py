"""Training speeds as they were timed on one machine."""

import pandas as pd

from analysis.names import rank
from analysis.study import Study

KIND = "throughput"


def measured(study: Study, subject: str) -> pd.DataFrame:
    """Training rows, one line per label, in the paper's order of models: those of the machine and length that most labels were
    timed by, of equals the newest. Where `subject`, the model of the figure, was timed by the step of trainings, only
    rows of that step: an earlier one of the evaluation's own was slower, and not for all alike. ValueError if there are
    none."""
    wanted = {"mode": "train", "step": "stepper"}
    if all(line.model != subject for line, _, _ in study.evaluations(KIND, **wanted)):
        wanted = {"mode": "train"}
    found = study.evaluations(KIND, **wanted)
    if not found:
        raise ValueError(f"{study.stem}: no training throughput is stored; run its experiment first")
    settings: dict[tuple[str, int], list[tuple[str, str, str]]] = {}
    for line, rows, meta in found:
        setting = rows["machine"].iloc[0], int(rows["seq_len"].iloc[0])
        settings.setdefault(setting, []).append((meta["created"], line.label, meta["eval_id"]))
    alike = max(settings.values(), key=lambda each: (len({label for _, label, _ in each}), max(each)))
    rows = study.rows(KIND, **wanted)
    rows = rows[rows["eval_id"].isin([eval_id for *_, eval_id in alike])]
    rows = rows.drop_duplicates("label")  # a fresh model's speed does not depend on the seed
    return rows.sort_values("model", key=lambda models: models.map(rank), kind="stable", ignore_index=True)
