"""Scores of the LM evaluation harness: as a table in the paper's columns, and as differences between models.

Noise: standard errors over a task's examples, and the spread over seeds; with one seed a claim cannot be decided. The harness
gives no error for word perplexity; it is taken to be half of 0.3, the difference between repeated trainings in print."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.names import missing_of, title
from analysis.statistics import Estimate, Part, Term, combined, contrast
from analysis.study import Study
from analysis.style import about
from analysis.tables import Cell, Column, count_range
from analysis.verdict import Comparison, Verdict, decide, not_applicable, number

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
KNOWN = PERPLEXITIES | ACCURACIES
COLUMNS = tuple(KNOWN)
BOTH = ("avg_acc", "wikitext_ppl")
SIX = ("lambada_acc", "piqa_acc", "hellaswag_acc_norm", "winogrande_acc", "arc_easy_acc", "arc_challenge_acc_norm")
"""The accuracies of Table 7, whose average is over these."""
STAND_INS = "The tasks are stand-ins made from the held-out text, not the public benchmark that the claim is about."
STOOD_IN = (
    " The tasks are stand-ins in the same format, from the held-out text; none is a public benchmark, and none is ranked."
)
WORD_PERPLEXITY_ERROR = 0.15


def made_locally(study: Study) -> bool:
    """Return whether tasks of the harness or of LongBench were stand-ins made from the held-out text, not the public ones."""
    specs = [meta["spec"] for kind in (KIND, "longbench") for meta in study.metas(kind)]
    return any(str(spec.get("include") or spec.get("dataset")).startswith("local") for spec in specs)


def _columns(rows: pd.DataFrame) -> dict[tuple[str, str], Column]:
    """Return columns by (task, metric): the paper's, then for other tasks perplexities, and acc_norm or, without that, acc."""
    found = set(zip(rows["task"], rows["metric"], strict=True))
    columns = {}
    for key, (task, metric, name) in KNOWN.items():
        what = {"acc": f" acc{UP}", "acc_norm": f" acc-n{UP}"}.get(metric, f" ppl{DOWN}")
        columns[task, metric] = Column(key, name + what, 2, "lower" if key in PERPLEXITIES else "higher")
    known = {task for task, _ in columns}
    for task, metric in sorted(place for place in found if place[0] not in known):
        if metric.endswith("perplexity"):
            columns[task, metric] = Column(f"{task}_{metric}", f"{task} {metric}{DOWN}", 2, "lower")
        elif metric == "acc_norm" or (metric == "acc" and (task, "acc_norm") not in found):
            columns[task, metric] = Column(f"{task}_{metric}", f"{task} {metric}{UP}", 2, "higher")
    return {place: column for place, column in columns.items() if place in found}


def scores(rows: pd.DataFrame, by: str = "label") -> dict[str, dict[str, np.ndarray]]:
    """Return values by label and column, one per seed, with avg_acc if the stored accuracies are the paper's ten (or the six of
    Table 7). Tasks that the paper does not have get a column TASK_METRIC."""
    table: dict[str, dict[str, np.ndarray]] = {}
    columns: dict[Any, Column] = _columns(rows)
    for label, own in rows.groupby(by, sort=False):
        values = own.pivot_table(index=["task", "metric"], columns="run_id", values="value", sort=False).dropna()
        line = {column.key: values.loc[place].to_numpy(float) for place, column in columns.items() if place in values.index}
        accuracies = [column for column in ACCURACIES if column in line]
        if set(accuracies) in (set(ACCURACIES), set(SIX)):
            line["avg_acc"] = np.mean([line[column] for column in accuracies], axis=0)
        table[str(label)] = line
    return table


def unranked(columns: list[Column]) -> list[Column]:
    """Return columns that mark no best value: stand-ins are few and easy, so that the best would be mostly chance."""
    return [replace(column, better="") for column in columns]


def content(study: Study) -> tuple[list[Column], dict[str, list[Cell]], str]:
    """Return columns, values per seed by label and column, and the note of a table of the harness's tasks."""
    rows = study.stored(KIND, WHAT)
    ours = scores(rows)
    present = {column for line in ours.values() for column in line}
    columns = [*_columns(rows).values(), Column("avg_acc", f"Avg{UP}", 2, "higher")]
    columns = [column for column in columns if column.key in present]
    note = about(study, corpus=False)
    if made_locally(study):
        columns = unranked(columns)
        note += STOOD_IN
    if "avg_acc" not in present:
        note += " No average: it needs all accuracies of the paper."
    note += f" {count_range(rows['num_examples'], 'examples')} per task."
    return columns, {label: [line.get(column.key) for column in columns] for label, line in ours.items()}, note


@dataclass(frozen=True)
class Line:
    """A model's values (S,) and standard errors over examples (None: printed numbers) by column."""

    values: dict[str, np.ndarray]
    errors: dict[str, float | None]


def lines_of(study: Study, columns: Collection[str] = COLUMNS, by: str = "model") -> dict[str, Line]:
    """Return the lines by model, or label, that have all `columns` and an average."""
    rows = study.stored(KIND, WHAT)
    found = scores(rows, by).items()
    return {name: Line(own, _errors(rows[rows[by] == name])) for name, own in found if {*columns, "avg_acc"} <= set(own)}


def _errors(rows: pd.DataFrame) -> dict[str, float | None]:
    stated = rows.groupby(["task", "metric"])["stderr"].mean()
    found = {column: float(stated.get((task, metric), np.nan)) for column, (task, metric, _) in KNOWN.items()}
    if not any(map(math.isfinite, found.values())):
        return dict.fromkeys([*COLUMNS, "avg_acc"])
    errors: dict[str, float | None] = {column: error if math.isfinite(error) else 0.0 for column, error in found.items()}
    accuracies = [found[column] for column in ACCURACIES if math.isfinite(found[column])]
    average = math.hypot(*accuracies) / len(accuracies)
    return errors | {"wikitext_ppl": errors["wikitext_ppl"] or WORD_PERPLEXITY_ERROR, "avg_acc": average}


def ahead(one: Line, other: Line, column: str) -> Estimate:
    """Estimate by how much `one` is better."""
    sign = -1.0 if column in PERPLEXITIES else 1.0
    effect = sign * float(one.values[column].mean() - other.values[column].mean())
    errors = [line.errors[column] for line in (one, other)]
    parts = [Part("times the examples", error**2, math.inf, 1) for error in errors if error is not None]
    nothing = np.empty(0)
    of_seeds = contrast([Term(sign, sign, line.values[column], nothing) for sign, line in ((1.0, one), (-1.0, other))])
    known = of_seeds.seeds_known or not parts
    return replace(combined(effect, [*parts, *of_seeds.parts]), seeds=of_seeds.seeds, seeds_known=known)


def column_title(column: str) -> str:
    if column == "avg_acc":
        return "average accuracy"
    return f"{KNOWN[column][2]} {'perplexity' if column in PERPLEXITIES else 'accuracy'}"


def ahead_on(study: Study, leads: Sequence[tuple[str, str, str]], columns: Collection[str] = COLUMNS) -> Verdict:
    """Return the verdict on "the first model of every lead is ahead of the second on its column"."""
    if made_locally(study):
        return not_applicable(STAND_INS)
    lines = lines_of(study, columns)
    there = [lead for lead in leads if set(lead[:2]) <= set(lines)]
    absent = missing_of((model for one, other, _ in leads for model in (one, other)), lines)
    comparisons = [
        Comparison(f"{column_title(column)}, lead of {title(one)} over {title(other)}", ahead(lines[one], lines[other], column),
                   unit="")
        for one, other, column in there
    ]  # fmt: skip
    parts = [f"{each.name} {number(each.estimate.effect, '')}" for each in comparisons]
    return decide("; ".join(parts) + ".", comparisons, absent)
