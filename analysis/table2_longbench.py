"""Table 2 (Table 9 at 760m-16b): LongBench, 14 English tasks."""

from pathlib import Path
from typing import Any

import pandas as pd

from analysis.names import SEVEN, ordered
from analysis.paper import Scores, paper_scores
from analysis.rows import count_range, made_locally, one_evaluation_each
from analysis.style import scale_note
from analysis.tables import Column, Table, write_table

KIND = "longbench"
TITLE = "Long-context downstream tasks"
PAPER = "Table 2"
SHOWS = (
    "LongBench. FoX is on par with the Transformer of the same architecture, and the softmax models are well ahead of the "
    "recurrent ones, except on the two code tasks."
)
CLAIMS = ("C21", "C22")
MODELS = SEVEN

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


def with_means(line: dict[str, float]) -> dict[str, float]:
    """Adds mean12 (without the code tasks) and mean14 where their tasks are all there."""
    line = dict(line)
    without_code = [task for task in TASKS if task not in CODE]
    for name, tasks in (("mean12", without_code), ("mean14", list(TASKS))):
        if all(task in line for task in tasks):
            line[name] = sum(line[task] for task in tasks) / len(tasks)
    return line


def scores(rows: pd.DataFrame) -> Scores:
    """Mean score over examples (and runs) by model and task, with mean12 and mean14 where complete."""
    one_evaluation_each(rows, ["task", "example"])
    means = rows.groupby(["model", "task"])["score"].mean()
    return {
        model: with_means({str(task): float(value) for task, value in means[model].items()})
        for model in ordered(rows["model"].unique())
    }


def summary(rows: pd.DataFrame, meta: dict[str, Any]) -> Table:
    """The table, with the paper's values where the scale is the same and the tasks are the real ones."""
    ours, local = scores(rows), made_locally(meta)
    paper = {} if local else {m: with_means(line) for m, line in paper_scores("table2_longbench", meta["scale"]).items()}
    titles = {**TASKS, "mean12": "Avg without code", "mean14": "Avg"}
    present = {column for line in ours.values() for column in line}
    columns = [Column(key, title, 2, "higher") for key, title in titles.items() if key in present]
    counts = rows.groupby(["task", "run_id"]).size()
    note = scale_note(meta["scale"]).capitalize() + f". {count_range(counts, 'examples')} per task."
    if local:
        note += " The tasks are stand-ins in the same format, made from the held-out text; they are not the public benchmark."
    if _originally_cut(meta):
        note += " Predictions are cut by the original benchmark's rule, not at the first line for all tasks as in the paper."
    return Table(
        "LongBench" + (" (Table 9 of the paper)" if meta["scale"] == "760m-16b" else ""),
        columns,
        {model: [line.get(column.key) for column in columns] for model, line in ours.items()},
        note,
        {model: [paper[model].get(column.key) for column in columns] for model in ours if model in paper},
    )


def _originally_cut(meta: dict[str, Any]) -> bool:
    return any(evaluation["spec"].get("original_cut") for evaluation in meta["evals"].values())


def render(rows: pd.DataFrame, meta: dict[str, Any], out: Path) -> list[Path]:
    """Write out/tables/table2_longbench.{md,tex,csv}."""
    return write_table(summary(rows, meta), out / "tables" / "table2_longbench")
