"""Table 2: LongBench.

Fourteen long-context tasks. FoX and the Transformer of the same architecture are on par, Pro is ahead of LLaMA, and the
recurrent models are well behind except on the two code tasks."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from analysis.harness import STAND_INS, STOOD_IN, made_locally, unranked
from analysis.names import PAIRS, RECURRENT, missing_of, pairs_in, title
from analysis.paper import paper_scores
from analysis.statistics import Term, contrast, stratified
from analysis.study import Study
from analysis.style import about
from analysis.tables import Cell, Column, Table, count_range, over_seeds
from analysis.verdict import Claim, Comparison, Verdict, decide, not_applicable, on_par
from experiments.evaluations import long_tasks as evals  # noqa: F401
from experiments.recipes import main_models as runs  # noqa: F401

KIND = "longbench"
WHAT = "results of LongBench"
TASKS = {
    "narrativeqa": "NarrativeQA", "qasper": "Qasper", "multifieldqa_en": "MFQA", "hotpotqa": "HotpotQA",
    "2wikimqa": "2WikiMQA", "musique": "Musique", "gov_report": "GovReport", "qmsum": "QMSum", "multi_news": "MultiNews",
    "trec": "TREC", "triviaqa": "TriviaQA", "samsum": "SamSum", "lcc": "LCC", "repobench_p": "RepoBench-P",
}  # fmt: skip
CODE = ("lcc", "repobench_p")
MEANS = {"mean12": tuple(task for task in TASKS if task not in CODE), "mean14": tuple(TASKS)}
MARGIN = 2.0
"""Our choice, in points: the paper only says on par, and its means over 14 tasks differ by less."""


def with_means(line: dict[str, Any]) -> dict[str, Any]:
    """Add mean12 (without the code tasks) and mean14 to a value (or one per seed) per task, if all their tasks are there."""
    means = {name: sum(line[task] for task in tasks) / len(tasks) for name, tasks in MEANS.items() if set(tasks) <= set(line)}
    return line | means


def scores(rows: pd.DataFrame) -> dict[str, dict[str, np.ndarray]]:
    """Mean score over examples, one per seed, by label and task, with mean12 and mean14 if complete."""
    table = {}
    for label, own in rows.groupby("label", sort=False):
        means = own.pivot_table(index="task", columns="run_id", values="score", sort=False).dropna()
        table[str(label)] = with_means({str(task): means.loc[task].to_numpy(float) for task in means.index})
    return table


def summary(study: Study) -> Table:
    """Tabulate the scores, with the paper's values if the scale is the same and the tasks are the public ones."""
    rows, local = study.stored(KIND, WHAT), made_locally(study)
    ours, models = scores(rows), {line.label: line.model for line in study.lines}
    printed = {} if local else paper_scores(study.stem, "".join(study.scales))
    titles = {**TASKS, "mean12": "Avg without code", "mean14": "Avg"}
    columns = [Column(key, title, 2, "higher") for key, title in titles.items() if any(key in line for line in ours.values())]
    note = f"{about(study, corpus=False)} {count_range(rows.groupby(['task', 'run_id']).size(), 'examples')} per task."
    if local:
        columns, note = unranked(columns), note + STOOD_IN
    if any(meta["spec"].get("original_cut") for meta in study.metas(KIND)):
        note += " Predictions are cut by the original benchmark's rule, not at the first line for all tasks as in the paper."
    values: dict[str, list[Cell]] = {label: [line.get(column.key) for column in columns] for label, line in ours.items()}
    theirs = {label: with_means(printed[models[label]]) for label in ours if models[label] in printed}
    paper = {label: [line.get(column.key) for column in columns] for label, line in theirs.items()}
    return over_seeds("LongBench, scores from 0 to 100", columns, values, note, paper)


def mean_terms(study: Study, tasks: tuple[str, ...]) -> dict[str, Term]:
    """Return the mean over tasks, as a term for `contrast`, of each model that has results on all of them."""
    rows = study.stored(KIND, WHAT)
    rows = rows[rows["task"].isin(tasks)].sort_values(["task", "example"], kind="stable")
    terms = {}
    for model, own in rows.groupby("model", sort=False):
        if own["task"].nunique() == len(tasks):
            per_seed = [seed for _, seed in own.groupby("run_id", sort=False)]
            which = per_seed[0]["task"].to_numpy()
            values_SD = np.stack([seed["score"].to_numpy() for seed in per_seed])
            seeds = np.array([stratified(values_D, which)[0] for values_D in values_SD])
            terms[str(model)] = Term(str(model), 1.0, seeds, stratified(values_SD.mean(axis=0), which)[1])
    return terms


def ahead(terms: dict[str, Term], one: str, other: str, mean: str, bound: float = 0.0) -> Comparison:
    """Compare one of MEANS: that of one model minus that of another should be above a bound."""
    lead = contrast([terms[one], replace(terms[other], coefficient=-1.0)])
    name = f"mean score of {len(MEANS[mean])} tasks, {title(one)} minus {title(other)}"
    return Comparison(name, lead, bound, unit="points")


def c21(study: Study) -> Verdict:
    """FoX is on par with the Transformer on LongBench: the means over 14 tasks differ by at most 2 points."""
    if made_locally(study):
        return not_applicable(STAND_INS)
    terms = mean_terms(study, MEANS["mean14"])
    there, others = pairs_in(terms)
    leads = [ahead(terms, *pair, "mean14") for pair in there]
    comparisons = [each for lead in leads for each in on_par(lead.name, lead.estimate, MARGIN, lead.unit, strict=False)]
    parts = [", ".join(f"{title(model)} {terms[model].seeds.mean():.2f}" for model in pair) for pair in there]
    sentence = f"Mean over 14 tasks: {'; '.join(parts)}; on par is within {MARGIN:g} points (two one-sided tests)."
    return decide(sentence, comparisons, [f"{words} on all 14 tasks" for words in others])


def c22(study: Study) -> Verdict:
    """Softmax models beat recurrent ones on the 12 LongBench tasks that are not code, by more than 3 points."""
    if made_locally(study):
        return not_applicable(STAND_INS)
    terms, wanted = mean_terms(study, MEANS["mean12"]), [model for pair in PAIRS for model in pair]
    softmax, recurrent = ([model for model in some if model in terms] for some in (wanted, RECURRENT))
    pairs, absent = list(product(softmax, recurrent)), missing_of((*wanted, *RECURRENT), terms)
    if not pairs:
        return decide("", [], absent)
    comparisons = [ahead(terms, *pair, "mean12", 3.0) for pair in pairs]
    means = {model: float(terms[model].seeds.mean()) for model in (*softmax, *recurrent)}
    lowest, highest = min(softmax, key=lambda model: means[model]), max(recurrent, key=lambda model: means[model])
    sentence = (
        f"Mean over 12 tasks: the lowest softmax model is {title(lowest)} with {means[lowest]:.2f}, the highest recurrent one "
        f"{title(highest)} with {means[highest]:.2f}; the claim asks for a lead of more than 3."
    )
    return decide(sentence, comparisons, absent)


CLAIMS = (
    Claim("C21", "FoX is on par with the Transformer on LongBench (means within 2 points)", c21),
    Claim("C22", "Softmax models beat recurrent ones on LongBench without its code tasks (by more than 3 points)", c22),
)
