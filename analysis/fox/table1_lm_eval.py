"""Table 1: zero-shot tasks of the LM evaluation harness."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.paper import paper_scores
from analysis.study import Study
from analysis.style import scale_note
from analysis.tables import Cell, Column, Table, count_range, over_seeds, write_table

KIND = "lm_eval"
WHAT = "results of the LM evaluation harness"
DOWN, UP = "\N{DOWNWARDS ARROW}", "\N{UPWARDS ARROW}"
# column -> (task, metric, title), in the paper's order
PERPLEXITIES = {
    "wikitext_ppl": ("wikitext", "word_perplexity", "Wiki."),
    "lambada_ppl": ("lambada_openai", "perplexity", "LMB."),
}
ACCURACIES = {
    "lambada_acc": ("lambada_openai", "acc", "LMB."),
    "piqa_acc": ("piqa", "acc", "PIQA"),
    "hellaswag_acc_norm": ("hellaswag", "acc_norm", "Hella."),
    "winogrande_acc": ("winogrande", "acc", "Wino."),
    "arc_easy_acc": ("arc_easy", "acc", "ARC-e"),
    "arc_challenge_acc_norm": ("arc_challenge", "acc_norm", "ARC-c"),
    "copa_acc": ("copa", "acc", "COPA"),
    "openbookqa_acc_norm": ("openbookqa", "acc_norm", "OBQA"),
    "sciq_acc": ("sciq", "acc", "SciQ"),
    "boolq_acc": ("boolq", "acc", "BoolQ"),
}
SIX = ("lambada_acc", "piqa_acc", "hellaswag_acc_norm", "winogrande_acc", "arc_easy_acc", "arc_challenge_acc_norm")
"""The accuracies of Table 7, whose average is over these."""
KNOWN_TASKS = {task for task, _, _ in (PERPLEXITIES | ACCURACIES).values()}


Scores = dict[str, dict[str, np.ndarray]]  # label -> column -> one value per seed


def made_locally(study: Study) -> bool:
    """Whether tasks were stand-ins made from the held-out text, not the public data sets."""
    return any(str(meta["spec"].get("include", "")).startswith("local") for meta in study.metas(KIND))


def scores(rows: pd.DataFrame) -> Scores:
    """Values by label and column, one per seed, with avg_acc over the ten accuracies (the six of Table 7) where these are
    there.

    Tasks that the paper does not have get a column TASK_METRIC: acc_norm where there is one, else acc, and perplexities.
    """
    table: Scores = {}
    for label, own in rows.groupby("label", sort=False):
        values = own.pivot_table(index=["task", "metric"], columns="run_id", values="value", sort=False).dropna()
        found = {key: values.loc[key].to_numpy(float) for key in values.index}
        known = PERPLEXITIES | ACCURACIES
        line = {column: found[task, metric] for column, (task, metric, _) in known.items() if (task, metric) in found}
        line |= {f"{task}_{metric}": found[task, metric] for task, metric in _others(set(found))}
        accuracies = [column for column in ACCURACIES if column in line]
        if set(accuracies) in (set(ACCURACIES), set(SIX)):
            line["avg_acc"] = np.mean([line[column] for column in accuracies], axis=0)
        table[str(label)] = line
    return table


def _others(found: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Metrics shown of the tasks that are not in the paper's table."""
    shown = []
    for task, metric in sorted(found):
        covered = metric == "acc" and (task, "acc_norm") in found
        if task not in KNOWN_TASKS and (metric in ("acc", "acc_norm") or metric.endswith("perplexity")) and not covered:
            shown.append((task, metric))
    return shown


def content(study: Study) -> tuple[list[Column], dict[str, list[Cell]], str]:
    """Columns, a value per seed for each label and column, and the note of a table of the harness's tasks."""
    rows = study.stored(KIND, WHAT)
    ours = scores(rows)
    present = {column for line in ours.values() for column in line}
    columns = [column for column in _all_columns(rows) if column.key in present]
    note = scale_note(study).capitalize() + "."
    if made_locally(study):
        note += " The tasks are stand-ins in the same format, made from the held-out text; they are not the public benchmarks."
    if "avg_acc" not in present:
        note += " No average: it needs all accuracies of the paper."
    note += f" {count_range(rows['num_examples'], 'examples')} per task."
    return columns, {label: [line.get(column.key) for column in columns] for label, line in ours.items()}, note


def summary(study: Study) -> Table:
    """The table, with the paper's values where the scale is the same and the tasks are the real ones."""
    columns, values, note = content(study)
    models = {line.label: line.model for line in study.lines}
    printed = {} if made_locally(study) else paper_scores(study.stem, "".join(study.scales))
    paper = {
        label: [printed[models[label]].get(column.key) for column in columns] for label in values if models[label] in printed
    }
    return over_seeds("Zero-shot evaluation with the LM evaluation harness", columns, values, note, paper)


def _all_columns(rows: pd.DataFrame) -> list[Column]:
    columns = [Column(key, f"{title} ppl{DOWN}", 2, "lower") for key, (_, _, title) in PERPLEXITIES.items()]
    for key, (_, metric, title) in ACCURACIES.items():
        columns.append(Column(key, f"{title} {'acc-n' if metric == 'acc_norm' else 'acc'}{UP}", 2, "higher"))
    found = {(str(task), str(metric)) for task, metric in rows[["task", "metric"]].drop_duplicates().to_numpy()}
    for task, metric in _others(found):
        lower = metric.endswith("perplexity")
        columns.append(Column(f"{task}_{metric}", f"{task} {metric}{DOWN if lower else UP}", 2, "lower" if lower else "higher"))
    return [*columns, Column("avg_acc", f"Avg{UP}", 2, "higher")]


def draw(study: Study) -> list[Path]:
    """Write tables/STEM.{md,tex,csv}."""
    return write_table(summary(study), study.folder / "tables" / study.stem)
