"""Claims C17 to C20c on short tasks (Tables 1, 7 and 8), C21, C22 and C24b on LongBench (Tables 2 and 9).

Noise: standard errors over a task's examples, paired between models on LongBench, and the spread over seeds where there are
several. The harness gives none for word perplexity; then half of 0.3 is taken, what repeated trainings in print differ by.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.fox import table1_lm_eval as table1
from analysis.fox import table2_longbench as table2
from analysis.fox.claims_loss import FAMILIES
from analysis.names import PAIRS, RECURRENT, missing_of, pairs_in, title
from analysis.statistics import Estimate, Term, combined, contrast, stratified
from analysis.study import Study
from analysis.verdict import Claim, Comparison, Verdict, decide, not_applicable, number

COLUMNS = (*table1.PERPLEXITIES, *table1.ACCURACIES)
WORD_PERPLEXITY_ERROR = 0.15
WINS_NEEDED = 9
MARGIN = 2.0
STAND_INS = "The tasks are stand-ins made from the held-out text, not the public benchmark that the claim is about."


@dataclass(frozen=True)
class Line:
    """A model's values (S,) and standard errors over examples (None: printed numbers) by column."""

    values: dict[str, np.ndarray]
    errors: dict[str, float | None]

    @property
    def seeds(self) -> int:
        return min(len(values) for values in self.values.values())


def lines_of(study: Study, columns: Collection[str] = COLUMNS) -> dict[str, Line]:
    """By model, those that have all columns of the paper's table."""
    models = {line.label: line.model for line in study.lines}
    return {models[label]: line for label, line in lines_by_label(study, columns).items()}


def lines_by_label(study: Study, columns: Collection[str] = COLUMNS) -> dict[str, Line]:
    """Those that have all `columns`."""
    rows = study.stored(table1.KIND, table1.WHAT)
    lines = {}
    for label, values in table1.scores(rows).items():
        if not {*columns, "avg_acc"} <= set(values):
            continue
        lines[label] = Line(values, _errors(rows[rows["label"] == label]))
    return lines


def _errors(rows: pd.DataFrame) -> dict[str, float | None]:
    stated = rows.groupby(["task", "metric"])["stderr"].mean()
    found = {
        column: float(stated.get((task, metric), np.nan))
        for column, (task, metric, _) in (table1.PERPLEXITIES | table1.ACCURACIES).items()
    }
    if not any(math.isfinite(error) for error in found.values()):
        return dict.fromkeys([*COLUMNS, "avg_acc"])
    accuracies = [column for column in table1.ACCURACIES if math.isfinite(found[column])]
    errors = {column: error if math.isfinite(error) else 0.0 for column, error in found.items()}
    errors["wikitext_ppl"] = errors["wikitext_ppl"] or WORD_PERPLEXITY_ERROR
    errors["avg_acc"] = math.hypot(*(errors[column] for column in accuracies)) / len(accuracies)
    return dict(errors)


def ahead(one: Line, other: Line, column: str) -> Estimate:
    """By how much `one` is better."""
    sign = -1.0 if column in table1.PERPLEXITIES else 1.0
    effect = sign * float(one.values[column].mean() - other.values[column].mean())
    parts = []
    for line in (one, other):
        values, error = line.values[column], line.errors[column]
        if error is not None:
            parts.append((error**2, math.inf))
        if len(values) > 1:
            parts.append((float(values.var(ddof=1)) / len(values), len(values) - 1.0))
    return combined(effect, parts)


def column_title(column: str) -> str:
    if column == "avg_acc":
        return "average"
    if column in table1.PERPLEXITIES:
        return f"{table1.PERPLEXITIES[column][2]} perplexity"
    return f"{table1.ACCURACIES[column][2]} accuracy"


def c17(study: Study) -> Verdict:
    """FoX (Pro) has the best average and the best two perplexities of all models."""
    if table1.made_locally(study):
        return not_applicable(STAND_INS)
    lines = lines_of(study)
    if "fox_pro" not in lines or len(lines) < 2:
        return decide("", [], 0, ["FoX (Pro) and another model with all columns of the table"])
    comparisons, parts = [], []
    for column in ("avg_acc", *table1.PERPLEXITIES):
        leads = {model: ahead(lines["fox_pro"], line, column) for model, line in lines.items() if model != "fox_pro"}
        name = f"{column_title(column)}, lead of FoX (Pro) over"
        own = [Comparison(f"{name} {title(model)}", lead, unit="") for model, lead in leads.items()]
        comparisons += own
        closest = min(own, key=lambda each: each.estimate.effect)
        value = lines["fox_pro"].values[column].mean()
        parts.append(f"{column_title(column)} {value:.2f} (ahead of the next best by {number(closest.estimate.effect, '')})")
    sentence = f"FoX (Pro) among {len(lines)} models: {'; '.join(parts)}."
    return decide(sentence, comparisons, min(line.seeds for line in lines.values()))


def _wins(study: Study, pairs: tuple[tuple[str, str], ...]) -> Verdict:
    """The first of each pair is ahead (ties are not) on at least 9 of the 12 columns. A column whose order is uncertain counts
    by the chance that it is ahead."""
    if table1.made_locally(study):
        return not_applicable(STAND_INS)
    lines = lines_of(study)
    there, absent = pairs_in(lines, pairs)
    comparisons, parts = [], []
    for one, other in there:
        leads = {column: ahead(lines[one], lines[other], column) for column in COLUMNS}
        chances = [1.0 - lead.p_not_above(0.0) for lead in leads.values()]
        known = all(lead.error is not None for lead in leads.values())
        error = math.sqrt(sum(chance * (1 - chance) for chance in chances)) if known else None
        name = f"columns on which {title(one)} is ahead of {title(other)}"
        comparisons.append(Comparison(name, Estimate(sum(chances), error), WINS_NEEDED - 0.5, unit="columns"))
        won = sum(lead.effect > 0 for lead in leads.values())
        lost = ", ".join(column_title(column) for column, lead in leads.items() if lead.effect <= 0) or "none"
        parts.append(f"{title(one)} ahead of {title(other)} on {won} of {len(COLUMNS)} (not on: {lost})")
    seeds = min((lines[model].seeds for pair in there for model in pair), default=0)
    return decide("; ".join(parts) + ".", comparisons, seeds, absent)


def c18(study: Study) -> Verdict:
    return _wins(study, PAIRS)


def c19(study: Study) -> Verdict:
    return _wins(study, FAMILIES)


Lead = tuple[str, str, str]  # model, the other, column


def _ahead_on(study: Study, leads: Sequence[Lead], columns: Collection[str] = COLUMNS) -> Verdict:
    """The first model of every lead is ahead of the second on its column."""
    if table1.made_locally(study):
        return not_applicable(STAND_INS)
    lines = lines_of(study, columns)
    there = [lead for lead in leads if {lead[0], lead[1]} <= set(lines)]
    absent = missing_of(dict.fromkeys(model for one, other, _ in leads for model in (one, other)), lines)
    comparisons = [
        Comparison(f"{column_title(column)}, lead of {title(one)} over {title(other)}", ahead(lines[one], lines[other], column),
                   unit="")
        for one, other, column in there
    ]  # fmt: skip
    parts = [f"{each.name} {number(each.estimate.effect, '')}" for each in comparisons]
    seeds = min((lines[model].seeds for one, other, _ in there for model in (one, other)), default=0)
    return decide("; ".join(parts) + ".", comparisons, seeds, absent)


BOTH = ("avg_acc", "wikitext_ppl")


def c20(study: Study) -> Verdict:
    """FoX is ahead of the Transformer of the same architecture on average and in Wikitext perplexity."""
    return _ahead_on(study, [(*pair, column) for pair in PAIRS for column in BOTH])


def c20b(study: Study) -> Verdict:
    """FoX is ahead of Samba, Transformer-SWA and Mamba-2 on average and in Wikitext perplexity."""
    others = ("samba", "transformer_swa", "mamba2")
    return _ahead_on(study, [(fox, other, column) for fox, _ in PAIRS for other in others for column in BOTH])


def c20c(study: Study) -> Verdict:
    """After short documents FoX (Pro) has the best average and Wikitext perplexity of the models trained here, and FoX (LLaMA)
    a better average than Transformer (LLaMA)."""
    others = ("transformer_pro", "fox_llama", "transformer_llama", "mamba2")
    leads = [("fox_pro", other, column) for other in others for column in BOTH]
    return _ahead_on(study, [*leads, ("fox_llama", "transformer_llama", "avg_acc")], (*table1.PERPLEXITIES, *table1.SIX))


def mean_terms(study: Study, tasks: tuple[str, ...]) -> dict[str, Term]:
    """The mean over tasks of each model that has them all, example by example."""
    rows = study.stored(table2.KIND, table2.WHAT)
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


def _minus(one: Term, other: Term) -> Estimate:
    return contrast([one, Term(other.source, -1.0, other.seeds, other.influence)])


def c21(study: Study) -> Verdict:
    """FoX is on par with the Transformer on LongBench: the means over 14 tasks differ by at most 2 points."""
    if table2.made_locally(study):
        return not_applicable(STAND_INS)
    terms = mean_terms(study, table2.MEANS["mean14"])
    there, others = pairs_in(terms)
    absent = [f"{words} on all 14 tasks" for words in others]
    comparisons, parts = [], []
    for fox, other in there:
        difference, name = _minus(terms[fox], terms[other]), f"{title(fox)} minus {title(other)}"
        comparisons += [
            Comparison(name, difference, MARGIN, below=True, strict=False, unit="points"),
            Comparison(name, difference, -MARGIN, strict=False, unit="points"),
        ]
        parts.append(f"{title(fox)} {terms[fox].seeds.mean():.2f}, {title(other)} {terms[other].seeds.mean():.2f}")
    sentence = f"Mean over 14 tasks: {'; '.join(parts)}; on par is within {MARGIN:g} points (two one-sided tests)."
    seeds = min((len(terms[model].seeds) for pair in there for model in pair), default=0)
    return decide(sentence, comparisons, seeds, absent)


def c22(study: Study) -> Verdict:
    """Softmax models beat recurrent ones on the 12 LongBench tasks that are not code, by more than 3 points."""
    if table2.made_locally(study):
        return not_applicable(STAND_INS)
    terms = mean_terms(study, table2.MEANS["mean12"])
    wanted = [model for pair in PAIRS for model in pair]
    softmax, recurrent = ([model for model in some if model in terms] for some in (wanted, RECURRENT))
    absent = missing_of((*wanted, *RECURRENT), terms)
    if not softmax or not recurrent:
        return decide("", [], 0, absent)
    comparisons = [
        Comparison(f"{title(one)} minus {title(other)}", _minus(terms[one], terms[other]), 3.0, unit="points")
        for one in softmax
        for other in recurrent
    ]
    lowest = min(softmax, key=lambda model: float(terms[model].seeds.mean()))
    highest = max(recurrent, key=lambda model: float(terms[model].seeds.mean()))
    sentence = (
        f"Mean over 12 tasks: the lowest softmax model is {title(lowest)} with {terms[lowest].seeds.mean():.2f}, the highest "
        f"recurrent one {title(highest)} with {terms[highest].seeds.mean():.2f}; the claim asks for a lead of more than 3."
    )
    return decide(sentence, comparisons, min(len(terms[model].seeds) for model in (*softmax, *recurrent)), absent)


def c24b(study: Study) -> Verdict:
    """FoX (Pro) and Transformer (Pro) beat Samba and Transformer-SWA on the 12 LongBench tasks that are not code."""
    if table2.made_locally(study):
        return not_applicable(STAND_INS)
    terms = mean_terms(study, table2.MEANS["mean12"])
    pairs = [(one, other) for one in ("fox_pro", "transformer_pro") for other in ("samba", "transformer_swa")]
    there, absent = pairs_in(terms, pairs)
    comparisons = [
        Comparison(f"{title(one)} minus {title(other)}", _minus(terms[one], terms[other]), unit="points")
        for one, other in there
    ]
    names = dict.fromkeys(model for pair in there for model in pair)
    parts = [f"{title(model)} {terms[model].seeds.mean():.2f}" for model in names]
    seeds = min((len(terms[model].seeds) for model in names), default=0)
    return decide(f"Mean over 12 tasks: {', '.join(parts)}.", comparisons, seeds, absent)


SHORT, LONG = "table1_lm_eval", "table2_longbench"
CLAIMS = (
    Claim("C17", "FoX (Pro) is best on average and on both perplexities", SHORT, c17),
    Claim("C18", "FoX is at least as good as the Transformer of the same architecture (9 of 12 columns)", SHORT, c18),
    Claim("C19", "Pro is at least as good as LLaMA within a family (9 of 12 columns)", SHORT, c19),
    Claim("C20", "FoX is ahead of the Transformer at 16B tokens, too: average and Wikitext", "table8_lm_eval", c20),
    Claim("C20b", "FoX is ahead of Samba, Transformer-SWA and Mamba-2: average and Wikitext", "table8_lm_eval", c20b),
    Claim("C20c", "The same after short documents (SlimPajama): FoX (Pro) is best", "table7_slimpajama", c20c),
    Claim("C21", "FoX is on par with the Transformer on LongBench (means within 2 points)", LONG, c21),
    Claim("C22", "Softmax models beat recurrent ones on LongBench without its code tasks (by more than 3 points)", LONG, c22),
    Claim("C24b", "Windowed and hybrid models are weaker on LongBench without its code tasks", "table9_longbench", c24b),
)
