"""Table 2 : LongBench, 14 English tasks."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.paper import paper_scores
from analysis.study import Study
from analysis.style import scale_note
from analysis.tables import Cell, Column, Table, count_range, over_seeds, write_table

KIND = "longbench"
WHAT = "results of LongBench"
TASKS = {
    "narrativeqa": "NarrativeQA",
    "qasper": "Qasper",
    "multifieldqa_en": "MFQA",
    "hotpotqa": "HotpotQA",
    "2wikimqa": "2WikiMQA",
    "musique": "Musique",
    "gov_report": "GovReport",
    "qmsum": "QMSum",
    "multi_news": "MultiNews",
    "trec": "TREC",
    "triviaqa": "TriviaQA",
    "samsum": "SamSum",
    "lcc": "LCC",
    "repobench_p": "RepoBench-P",
}
CODE = ("lcc", "repobench_p")


WITHOUT_CODE = tuple(task for task in TASKS if task not in CODE)
MEANS = {"mean12": WITHOUT_CODE, "mean14": tuple(TASKS)}


def made_locally(study: Study) -> bool:
    """Whether tasks were stand-ins made from the held-out text, not the public data sets."""
    return any(str(meta["spec"].get("dataset", "")).startswith("local") for meta in study.metas(KIND))


def with_means(line: dict[str, Any]) -> dict[str, Any]:
    """Adds, to a value (or one per seed) per task, mean12 (without the code tasks) and mean14 where all their tasks are."""
    means = {name: sum(line[task] for task in tasks) / len(tasks) for name, tasks in MEANS.items() if set(tasks) <= set(line)}
    return line | means


def scores(rows: pd.DataFrame) -> dict[str, dict[str, np.ndarray]]:
    """Mean score over examples, one per seed, by label and task, with mean12 and mean14 where complete."""
    table = {}
    for label, own in rows.groupby("label", sort=False):
        means = own.pivot_table(index="task", columns="run_id", values="score", sort=False).dropna()
        table[str(label)] = with_means({str(task): means.loc[task].to_numpy(float) for task in means.index})
    return table


def summary(study: Study) -> Table:
    """The table, with the paper's values where the scale is the same and the tasks are the real ones."""
    rows, local = study.stored(KIND, WHAT), made_locally(study)
    ours = scores(rows)
    models = rows.drop_duplicates("label").set_index("label")["model"]
    printed = {} if local else paper_scores(study.stem, "".join(study.scales))
    paper = {model: with_means(line) for model, line in printed.items()}
    present = {column for line in ours.values() for column in line}
    titles = {**TASKS, "mean12": "Avg without code", "mean14": "Avg"}
    columns = [Column(key, title, 2, "higher") for key, title in titles.items() if key in present]
    counts = rows.groupby(["task", "run_id"]).size()
    note = scale_note(study).capitalize() + f". {count_range(counts, 'examples')} per task."
    if local:
        note += " The tasks are stand-ins in the same format, made from the held-out text; they are not the public benchmark."
    if any(meta["spec"].get("original_cut") for meta in study.metas(KIND)):
        note += " Predictions are cut by the original benchmark's rule, not at the first line for all tasks as in the paper."
    values: dict[str, list[Cell]] = {label: [line.get(column.key) for column in columns] for label, line in ours.items()}
    return over_seeds(
        "LongBench, scores from 0 to 100",
        columns,
        values,
        note,
        {label: [paper[models[label]].get(column.key) for column in columns] for label in ours if models[label] in paper},
    )


def draw(study: Study) -> list[Path]:
    """Write tables/STEM.{md,tex,csv}."""
    return write_table(summary(study), study.folder / "tables" / study.stem)
