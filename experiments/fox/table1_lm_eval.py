"""Table 1: Short-context downstream tasks.

Zero-shot results of the LM evaluation harness. FoX (Pro) has the best average and both lowest perplexities; FoX is ahead of the
Transformer of the same architecture, and Pro ahead of LLaMA, in nearly all columns."""

import math
from functools import partial

from analysis.harness import COLUMNS, PERPLEXITIES, STAND_INS, ahead, column_title, content, lines_of, made_locally
from analysis.names import FAMILIES, PAIRS, pairs_in, title
from analysis.paper import paper_scores
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.tables import Table, over_seeds
from analysis.verdict import Claim, Comparison, Verdict, decide, not_applicable, number
from experiments.evaluations import short_tasks as evals  # noqa: F401
from experiments.recipes import main_models as runs  # noqa: F401

WINS_NEEDED = 9


def summary(study: Study) -> Table:
    """Tabulate the scores, with the paper's values if the scale is the same and the tasks are the public ones."""
    columns, values, note = content(study)
    models = {line.label: line.model for line in study.lines}
    printed = {} if made_locally(study) else paper_scores(study.stem, "".join(study.scales))
    theirs = {label: printed[models[label]] for label in values if models[label] in printed}
    paper = {label: [line.get(column.key) for column in columns] for label, line in theirs.items()}
    return over_seeds("Zero-shot evaluation with the LM evaluation harness", columns, values, note, paper)


def c17(study: Study) -> Verdict:
    """FoX (Pro) has the best average and the best two perplexities of all models."""
    if made_locally(study):
        return not_applicable(STAND_INS)
    lines = lines_of(study)
    if "fox_pro" not in lines or len(lines) < 2:
        return decide("", [], ["FoX (Pro) and another model with all columns of the table"])
    comparisons, parts, fox = [], [], lines["fox_pro"]
    for column in ("avg_acc", *PERPLEXITIES):
        name, leads = (
            column_title(column),
            {model: ahead(fox, line, column) for model, line in lines.items() if line is not fox},
        )
        words = f"{name}, lead of FoX (Pro) over"
        comparisons += [Comparison(f"{words} {title(model)}", lead, unit="") for model, lead in leads.items()]
        closest = number(min(lead.effect for lead in leads.values()), "")
        parts.append(f"{name} {fox.values[column].mean():.2f} (ahead of the next best by {closest})")
    sentence = f"FoX (Pro) among {len(lines)} models: {'; '.join(parts)}."
    return decide(sentence, comparisons)


def _wins(study: Study, pairs: tuple[tuple[str, str], ...]) -> Verdict:
    """Judge whether the first of each pair is ahead (ties do not count) on at least 9 of the 12 columns. A column with an
    uncertain order counts by the probability that the first is ahead."""
    if made_locally(study):
        return not_applicable(STAND_INS)
    lines = lines_of(study)
    there, absent = pairs_in(lines, pairs)
    comparisons, parts = [], []
    for one, other in there:
        leads = {column: ahead(lines[one], lines[other], column) for column in COLUMNS}
        chances = [1.0 - lead.p_not_above(0.0) for lead in leads.values()]
        known = all(lead.error is not None for lead in leads.values())
        error = math.sqrt(sum(chance * (1 - chance) for chance in chances)) if known else None
        seeds, seeds_known = min(lead.seeds for lead in leads.values()), all(lead.seeds_known for lead in leads.values())
        wins = Estimate(sum(chances), error, seeds=seeds, seeds_known=seeds_known)
        name = f"columns on which {title(one)} is ahead of {title(other)}"
        comparisons.append(Comparison(name, wins, WINS_NEEDED - 0.5, unit="columns"))
        lost = [column_title(column) for column, lead in leads.items() if lead.effect <= 0]
        won = f"{len(COLUMNS) - len(lost)} of {len(COLUMNS)} (not on: {', '.join(lost) or 'none'})"
        parts.append(f"{title(one)} ahead of {title(other)} on {won}")
    return decide("; ".join(parts) + ".", comparisons, absent)


c18, c19 = partial(_wins, pairs=PAIRS), partial(_wins, pairs=FAMILIES)

CLAIMS = (
    Claim("C17", "FoX (Pro) is best on average and on both perplexities", c17),
    Claim("C18", "FoX is at least as good as the Transformer of the same architecture (9 of 12 columns)", c18),
    Claim("C19", "Pro is at least as good as LLaMA within a family (9 of 12 columns)", c19),
)
