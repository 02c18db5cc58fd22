"""Table 1 (Table 8 at 760m-16b): zero-shot tasks of the LM evaluation harness."""

from pathlib import Path
from typing import Any

import pandas as pd

from analysis.names import SEVEN, ordered
from analysis.paper import Scores, paper_scores
from analysis.rows import count_range, made_locally, one_evaluation_each
from analysis.style import scale_note
from analysis.tables import Column, Table, write_table

KIND = "lm_eval"
TITLE = "Short-context downstream tasks"
PAPER = "Table 1"
SHOWS = (
    "Zero-shot results of the LM evaluation harness. FoX (Pro) has the best average and both lowest perplexities; FoX is "
    "ahead of the Transformer of the same architecture, and Pro ahead of LLaMA, in nearly all columns."
)
CLAIMS = ("C17", "C18", "C19")
MODELS = SEVEN

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
KNOWN_TASKS = {task for task, _, _ in (PERPLEXITIES | ACCURACIES).values()}


def scores(rows: pd.DataFrame) -> Scores:
    """Values by model and column, mean over runs, with avg_acc over the ten accuracies where all are there.

    Tasks that the paper does not have get a column TASK_METRIC: acc_norm where there is one, else acc, and perplexities.
    """
    one_evaluation_each(rows, ["task", "metric"])
    table: Scores = {}
    for model in ordered(rows["model"].unique()):
        means = rows[rows["model"] == model].groupby(["task", "metric"], as_index=False)["value"].mean()
        found = dict(zip(zip(means["task"], means["metric"], strict=True), means["value"].astype(float), strict=True))
        known = PERPLEXITIES | ACCURACIES
        line = {column: found[task, metric] for column, (task, metric, _) in known.items() if (task, metric) in found}
        line |= {f"{task}_{metric}": found[task, metric] for task, metric in _others(set(found))}
        if all(column in line for column in ACCURACIES):
            line["avg_acc"] = sum(line[column] for column in ACCURACIES) / len(ACCURACIES)
        table[model] = line
    return table


def _others(found: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Metrics shown of the tasks that are not in the paper's table."""
    shown = []
    for task, metric in sorted(found):
        covered = metric == "acc" and (task, "acc_norm") in found
        if task not in KNOWN_TASKS and (metric in ("acc", "acc_norm") or metric.endswith("perplexity")) and not covered:
            shown.append((task, metric))
    return shown


def summary(rows: pd.DataFrame, meta: dict[str, Any]) -> Table:
    """The table, with the paper's values where the scale is the same and the tasks are the real ones."""
    ours, local = scores(rows), made_locally(meta)
    paper = {} if local else paper_scores("table1_lm_eval", meta["scale"])
    present = {column for line in ours.values() for column in line}
    columns = [column for column in _all_columns(rows) if column.key in present]
    note = scale_note(meta["scale"]).capitalize() + "."
    if local:
        note += " The tasks are stand-ins in the same format, made from the held-out text; they are not the public benchmarks."
    if "avg_acc" not in present:
        note += " No average: it needs all ten accuracies of the paper."
    examples = rows.groupby(["task", "eval_id"])["num_examples"].max()
    note += f" {count_range(examples, 'examples')} per task."
    return Table(
        "Zero-shot evaluation with the LM evaluation harness"
        + (" (Table 8 of the paper)" if meta["scale"] == "760m-16b" else ""),
        columns,
        {model: [line.get(column.key) for column in columns] for model, line in ours.items()},
        note,
        {model: [paper[model].get(column.key) for column in columns] for model in ours if model in paper},
    )


def _all_columns(rows: pd.DataFrame) -> list[Column]:
    columns = [Column(key, f"{title} ppl{DOWN}", 2, "lower") for key, (_, _, title) in PERPLEXITIES.items()]
    for key, (_, metric, title) in ACCURACIES.items():
        columns.append(Column(key, f"{title} {'acc-n' if metric == 'acc_norm' else 'acc'}{UP}", 2, "higher"))
    found = {(str(task), str(metric)) for task, metric in rows[["task", "metric"]].drop_duplicates().to_numpy()}
    for task, metric in _others(found):
        lower = metric.endswith("perplexity")
        columns.append(Column(f"{task}_{metric}", f"{task} {metric}{DOWN if lower else UP}", 2, "lower" if lower else "higher"))
    return [*columns, Column("avg_acc", f"Avg{UP}", 2, "higher")]


def render(rows: pd.DataFrame, meta: dict[str, Any], out: Path) -> list[Path]:
    """Write out/tables/table1_lm_eval.{md,tex,csv}."""
    return write_table(summary(rows, meta), out / "tables" / "table1_lm_eval")
