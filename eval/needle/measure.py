"""Needle in a haystack: greedy answers and their scores. Match scores need no judge: the prompt ends with the beginning of the
answer, so a correct continuation is the rest of the sentence."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from eval.needle.haystack import CellBuilder
from eval.needle.spec import Spec
from eval.needle.wording import DEFAULT_WORDING, Wording, words
from eval.runner.context import Context
from eval.runner.generation import answered
from eval.runner.loading import Loaded
from eval.runner.sources import checked

if TYPE_CHECKING:
    from eval.needle.judge import Judge

UNRELATED_BELOW = 1 / 3  # share of expected words that unrelated English reaches by chance


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per prompt. Documents have exactly length - reserve of the model's tokens, without BOS and query. Generation
    is greedy."""
    path, judge = context.sources.prompts or DEFAULT_WORDING, None
    checked("wording", str(spec.wording), path, "--prompts")
    wording = Wording.read(path)
    if spec.judge is not None:  # refused before anything is generated
        from eval.needle import judge as asking

        judge = asking.Judge.of(spec.judge, context)
    cells = list(CellBuilder(loaded.tokenizer, spec, context).cells([wording]))
    prompts = {cell.key: cell.prompt for cell in cells}
    answers = answered(f"needle ({spec.mode})", prompts, loaded, context, spec.precision, spec.max_new_tokens)
    rows = []
    for cell in cells:
        prediction = answers[cell.key]["prediction"]
        rows.append({**cell.place, **scores(prediction, cell.expected), "scored_by": "match", "prediction": prediction})
    if judge is not None:
        _judged(rows, judge, wording)
    return pd.DataFrame(rows)


def scores(prediction: str, expected: str) -> dict[str, float]:
    """Return score (1 to 10: 10 for an exact match, 1 for up to a third of the words, linear in between), exact and fuzzy."""
    exact, fuzzy = exact_match(prediction, expected), fuzzy_match(prediction, expected)
    score = 10.0 if exact else 1.0 + 9.0 * max(0.0, (fuzzy - UNRELATED_BELOW) / (1.0 - UNRELATED_BELOW))
    return {"score": score, "exact": float(exact), "fuzzy": fuzzy}


def _judged(rows: list[dict[str, Any]], judge: "Judge", wording: Wording) -> None:
    """Replace the match scores by the judge's; an empty answer gets the lowest score without being sent."""
    asked = [row for row in rows if row["prediction"].strip()]
    scores = judge.score_all([wording.judge_prompt(row["prediction"]) for row in asked])
    for row in rows:
        row["scored_by"], row["score"] = judge.model, 1.0
    for row, score in zip(asked, scores, strict=True):
        row["score"] = float(score)


def exact_match(prediction: str, expected: str) -> bool:
    """Return whether the prediction begins with the expected words; case, punctuation and further words are ignored."""
    wanted = words(expected)
    return bool(wanted) and words(prediction)[: len(wanted)] == wanted


def fuzzy_match(prediction: str, expected: str) -> float:
    """Return the share of expected words found in order (longest common subsequence) among the prediction's first words, twice
    as many as expected."""
    wanted = words(expected)
    given = words(prediction)[: 2 * len(wanted)]
    previous = [0] * (len(given) + 1)
    for word in wanted:
        row = [0]
        for j, other in enumerate(given):
            row.append(previous[j] + 1 if word == other else max(previous[j + 1], row[j]))
        previous = row
    return previous[-1] / len(wanted) if wanted else 0.0
