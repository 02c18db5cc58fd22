"""Claims about tasks: C17-C19 (Table 1), C21 and C22 (Table 2), C22b and C22c (Figure 4), as predicates on scores.

Noise floors, from the spread between repeated runs in print and the number of examples: Wikitext perplexity 0.3, LAMBADA
perplexity 0.9, average of Table 1 0.9 point; an accuracy, two binomial standard errors of a difference; a LongBench task
2.5 points on 200 examples, hence a mean over n tasks 2.5 / sqrt(n).
"""

import math

import pandas as pd

from analysis.names import RECURRENT, label
from analysis.paper import Scores
from analysis.table1_lm_eval import ACCURACIES, PERPLEXITIES
from analysis.verdict import Status, Verdict, not_applicable, status_of

PAIRS = (("fox_pro", "transformer_pro"), ("fox_llama", "transformer_llama"))
FAMILIES = (("fox_pro", "fox_llama"), ("transformer_pro", "transformer_llama"))
NOISE = {"wikitext_ppl": 0.3, "lambada_ppl": 0.9, "avg_acc": 0.9}
# One binomial standard error, in points, at FoX (Pro)'s accuracies in Table 1.
STANDARD_ERROR = {
    "lambada_acc": 0.69,
    "piqa_acc": 1.12,
    "hellaswag_acc_norm": 0.49,
    "winogrande_acc": 1.40,
    "arc_easy_acc": 1.02,
    "arc_challenge_acc_norm": 1.29,
    "copa_acc": 4.54,
    "openbookqa_acc_norm": 2.05,
    "sciq_acc": 1.13,
    "boolq_acc": 0.87,
}
LONGBENCH_NOISE = 2.5
WINS_NEEDED = 9
COLUMNS = (*PERPLEXITIES, *ACCURACIES)


def _better_by(column: str, ours: float, theirs: float) -> float:
    """How far `ours` is ahead, positive when better."""
    return theirs - ours if column in PERPLEXITIES else ours - theirs


def _noise(column: str) -> float:
    return NOISE[column] if column in NOISE else 2 * math.sqrt(2) * STANDARD_ERROR[column]


def _title(column: str) -> str:
    if column == "avg_acc":
        return "average"
    return f"{PERPLEXITIES[column][2]} perplexity" if column in PERPLEXITIES else f"{ACCURACIES[column][2]} accuracy"


def _complete(scores: Scores, columns: tuple[str, ...]) -> list[str]:
    return [model for model, line in scores.items() if all(column in line for column in columns)]


def c17(scores: Scores) -> Verdict:
    """FoX (Pro) has the best average and the best two perplexities of all models."""
    columns = ("avg_acc", *PERPLEXITIES)
    models = _complete(scores, columns)
    if "fox_pro" not in models or len(models) < 2:
        return not_applicable("C17", "Needs FoX (Pro) and another model with all ten accuracies and both perplexities.")
    violations, noises, parts, numbers = [], [], [], {}
    for column in columns:
        ours = scores["fox_pro"][column]
        others = {model: scores[model][column] for model in models if model != "fox_pro"}
        best = max(others, key=lambda model: _better_by(column, others[model], ours))
        ahead = _better_by(column, ours, others[best])
        violations.append(-ahead if ahead else 1e-12)
        noises.append(_noise(column))
        parts.append(f"{_title(column)} {ours:.2f} (best of the others: {label(best)} {others[best]:.2f})")
        numbers[f"{_title(column)}: lead of FoX (Pro)"] = ahead
    sentence = f"FoX (Pro) among {len(models)} models: {'; '.join(parts)}."
    return Verdict("C17", status_of(violations, noises), sentence, numbers)


def _wins(claim: str, scores: Scores, pairs: tuple[tuple[str, str], ...]) -> Verdict:
    """The first of each pair wins (ties are no wins) on at least 9 of the 12 columns."""
    models = _complete(scores, COLUMNS)
    present = [pair for pair in pairs if set(pair) <= set(models)]
    if not present:
        return not_applicable(claim, "Needs both models of a pair with all twelve columns of the table.")
    numbers: dict[str, float] = {}
    statuses, parts = [], []
    for first, second in present:
        leads = {column: _better_by(column, scores[first][column], scores[second][column]) for column in COLUMNS}
        wins = sum(lead > 0 for lead in leads.values())
        undecided = sum(-_noise(column) <= lead <= 0 for column, lead in leads.items())
        if wins >= WINS_NEEDED:
            statuses.append(Status.HOLDS)
        else:
            statuses.append(Status.WITHIN_NOISE if wins + undecided >= WINS_NEEDED else Status.FAILS)
        lost = ", ".join(_title(column) for column, lead in leads.items() if lead <= 0) or "none"
        parts.append(f"{label(first)} ahead of {label(second)} on {wins} of {len(COLUMNS)} (not on: {lost})")
        numbers |= {f"{_title(column)}: lead of {label(first)}": lead for column, lead in leads.items()}
    return Verdict(claim, _worst(statuses), "; ".join(parts) + ".", numbers)


def _worst(statuses: list[Status]) -> Status:
    order = [Status.HOLDS, Status.WITHIN_NOISE, Status.FAILS]
    return max(statuses, key=order.index)


def c18(scores: Scores) -> Verdict:
    """FoX is at least as good as the Transformer of the same architecture: wins at least 9 of 12 columns."""
    return _wins("C18", scores, PAIRS)


def c19(scores: Scores) -> Verdict:
    """Pro is at least as good as LLaMA within a family: wins at least 9 of 12 columns."""
    return _wins("C19", scores, FAMILIES)


def c21(scores: Scores) -> Verdict:
    """FoX is on par with the Transformer on LongBench: the means over 14 tasks differ by at most 2 points."""
    models = _complete(scores, ("mean14",))
    pairs = [pair for pair in PAIRS if set(pair) <= set(models)]
    if not pairs:
        return not_applicable("C21", "Needs FoX and the Transformer of one architecture on all 14 tasks.")
    means = {model: scores[model]["mean14"] for pair in pairs for model in pair}
    violations = [abs(means[fox] - means[transformer]) - 2.0 for fox, transformer in pairs]
    noises = [LONGBENCH_NOISE / math.sqrt(14)] * len(pairs)
    parts = [f"{label(fox)} {means[fox]:.2f} against {label(other)} {means[other]:.2f}" for fox, other in pairs]
    sentence = f"Mean over 14 tasks: {'; '.join(parts)}; allowed difference 2."
    return Verdict("C21", status_of(violations, noises), sentence, {f"mean14 {label(m)}": v for m, v in means.items()})


def c22(scores: Scores) -> Verdict:
    """Softmax models beat recurrent ones on the 12 LongBench tasks that are not code, by more than 3 points."""
    models = _complete(scores, ("mean12",))
    softmax = [model for pair in PAIRS for model in pair if model in models]
    recurrent = [model for model in RECURRENT if model in models]
    if len(softmax) < 4 or not recurrent:
        return not_applicable("C22", "Needs FoX and the Transformer, Pro and LLaMA, and a recurrent model on all 12 tasks.")
    means = {model: scores[model]["mean12"] for model in (*softmax, *recurrent)}
    lowest = min(softmax, key=lambda model: means[model])
    highest = max(recurrent, key=lambda model: means[model])
    lead = means[lowest] - means[highest]
    violation = 3.0 - lead if lead != 3.0 else 1e-12
    status = status_of([violation], [LONGBENCH_NOISE / math.sqrt(12)])
    sentence = (
        f"Mean over 12 tasks: the lowest softmax model is {label(lowest)} with {means[lowest]:.2f}, the highest recurrent one "
        f"{label(highest)} with {means[highest]:.2f}; the claim asks for a lead of more than 3."
    )
    return Verdict("C22", status, sentence, {f"mean12 {label(m)}": v for m, v in means.items()})


def longest_inside(train_len: int) -> float:
    """Longest needle prompt counted as inside the training context: the paper's 13,400 of 16,384, scaled."""
    return train_len * 13_400 / 16_384


def _needle_scores(rows: pd.DataFrame, mode: str, train_len: int) -> dict[str, pd.Series]:
    """Score by (length, depth) inside the training context, per model, mean over samples and runs."""
    rows = rows[(rows["mode"] == mode) & (rows["length"] <= longest_inside(train_len))]
    return {str(model): own.groupby(["length", "depth"])["score"].mean() for model, own in rows.groupby("model")}


def _standard_error(cells: pd.Series) -> float:
    return float(cells.std(ddof=1) / math.sqrt(len(cells))) if len(cells) > 1 else 0.0


def c22b(rows: pd.DataFrame, train_len: int) -> Verdict:
    """Easy needle inside the training context: FoX and Transformer at least 9.5, each recurrent model lower by 2."""
    cells = _needle_scores(rows, "easy", train_len)
    softmax = [model for pair in PAIRS for model in pair if model in cells]
    recurrent = [model for model in RECURRENT if model in cells]
    if not softmax or not recurrent:
        return not_applicable("C22b", "Needs easy-mode scores of softmax and recurrent models inside the training context.")
    means = {model: float(cells[model].mean()) for model in (*softmax, *recurrent)}
    lowest = min(softmax, key=lambda model: means[model])
    violations = [9.5 - means[model] for model in softmax]
    violations += [means[model] - (means[lowest] - 2.0) for model in recurrent]
    noises = [2 * _standard_error(cells[model]) for model in (*softmax, *recurrent)]
    parts = [f"{label(model)} {means[model]:.2f}" for model in (*softmax, *recurrent)]
    sentence = f"Easy mode, lengths up to {longest_inside(train_len):,.0f}: {', '.join(parts)}."
    return Verdict("C22b", status_of(violations, noises), sentence, {f"easy {label(m)}": v for m, v in means.items()})


LOWEST_SCORE = 1.0


def c22c(rows: pd.DataFrame, train_len: int) -> Verdict:
    """Standard needle inside the training context: FoX at least as good as the Transformer of the same architecture."""
    cells = _needle_scores(rows, "standard", train_len)
    pairs = [pair for pair in PAIRS if set(pair) <= set(cells)]
    if not pairs:
        return not_applicable("C22c", "Needs standard-mode scores of FoX and the Transformer inside the training context.")
    means = {model: float(cells[model].mean()) for pair in pairs for model in pair}
    if max(means.values()) <= LOWEST_SCORE:
        return not_applicable("C22c", "No model finds the needle anywhere (all scores are the lowest), so there is no order.")
    violations = [means[transformer] - means[fox] for fox, transformer in pairs]
    noises = [2 * _standard_error((cells[transformer] - cells[fox]).dropna()) for fox, transformer in pairs]
    parts = [f"{label(fox)} {means[fox]:.2f} against {label(other)} {means[other]:.2f}" for fox, other in pairs]
    sentence = f"Standard mode, lengths up to {longest_inside(train_len):,.0f}: {'; '.join(parts)}."
    return Verdict("C22c", status_of(violations, noises), sentence, {f"standard {label(m)}": v for m, v in means.items()})
