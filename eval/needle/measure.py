"""Needle in a haystack: greedy answers and their scores. Match scores need no judge: the prompt already holds the beginning of
the answer, so the continuation goes on as the sentence does, or it does not."""

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from eval.needle.cells import Cell, CellBuilder
from eval.needle.passkey import passkey
from eval.needle.spec import Spec
from eval.needle.wording import DEFAULT_WORDING, Wording
from eval.shell.context import Context
from eval.shell.generation import answer
from eval.shell.loading import Loaded
from eval.shell.sources import checked
from eval.shell.text import TextCodec
from training.progress import Progress

if TYPE_CHECKING:
    from eval.needle.judge import Judge

PASSKEY_SEED = 20250302
PASSKEY_NEW_TOKENS = 12
UNRELATED_BELOW = 1 / 3  # shares of common words that unrelated English reaches by chance


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per prompt.

    Documents of easy and standard cells have exactly length - reserve tokens as the model reads them, BOS and query
    not counted; pass-key prompts have exactly `length` tokens, everything counted. Generation is greedy.
    `context.extras` gets prompt_tokens: {length: longest prompt, BOS and query included}.
    """
    path, limit, judge = context.sources.prompts or DEFAULT_WORDING, spec.max_new_tokens, None
    if spec.mode == "passkey":
        limit = min(limit, PASSKEY_NEW_TOKENS)
    else:
        checked("wording", str(spec.wording), path, "--prompts")
    wording = Wording.read(path)
    if spec.judge is not None:  # refused before anything is generated
        from eval.needle import judge as asking

        judge = asking.Judge(spec.judge, asking.JudgeSettings.of(spec.judge, context))
    cells = build_cells(loaded.tokenizer, spec, context, wording)
    answers = context.partial.records
    with Progress(f"needle ({spec.mode})", len(cells), len(answers)) as progress:
        answer(loaded, {cell.key: cell.prompt for cell in cells}, context, spec.precision, limit, progress)
    longest = {str(length): max(len(c.prompt) for c in cells if c.length == length) for length in spec.lengths}
    context.extras["prompt_tokens"] = longest
    rows = [_row(cell, answers[cell.key]["prediction"]) for cell in cells]
    if judge is not None:
        _judged(rows, judge, wording)
    return pd.DataFrame(rows)


def build_cells(codec: TextCodec, spec: Spec, context: Context, wording: Wording) -> list[Cell]:
    """Make all prompts of the grid."""
    builder = CellBuilder(codec, spec, context)
    if spec.mode != "passkey":
        return list(builder.cells([wording]))
    cells = []
    for length, depth, sample in builder.places():
        rng = np.random.default_rng([PASSKEY_SEED, length, round(depth * 1000), sample])
        prompt, value = passkey(codec, builder.ids, length=length, depth=depth, num_keys=spec.num_keys, rng=rng)
        cells.append(Cell(spec.mode, length, depth, sample, prompt, value))
    return cells


def _row(cell: Cell, prediction: str) -> dict[str, Any]:
    if cell.mode == "passkey":
        given = prediction.strip()[: len(cell.expected)]  # what follows does not count, as in the other modes
        exact = given == cell.expected
        fuzzy = sum(a == b for a, b in zip(given, cell.expected, strict=False)) / len(cell.expected)
    else:
        exact, fuzzy = exact_match(prediction, cell.expected), fuzzy_match(prediction, cell.expected)
    scores = {"score": match_score(exact, fuzzy), "exact": float(exact), "fuzzy": fuzzy}
    return {**cell.place, **scores, "scored_by": "match", "prediction": prediction}


def _judged(rows: list[dict[str, Any]], judge: "Judge", wording: Wording) -> None:
    """Replace the match scores by the judge's; an empty answer gets the lowest score without being sent."""
    asked = [row for row in rows if row["prediction"].strip()]
    scores = judge.score_all([wording.judge_prompt(row["prediction"]) for row in asked])
    for row in rows:
        row["scored_by"], row["score"] = judge.model, 1.0
    for row, score in zip(asked, scores, strict=True):
        row["score"] = float(score)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def exact_match(prediction: str, expected: str) -> bool:
    """Tell whether the prediction begins with the expected words; case, punctuation and what follows do not count."""
    wanted = words(expected)
    return bool(wanted) and words(prediction)[: len(wanted)] == wanted


def fuzzy_match(prediction: str, expected: str) -> float:
    """Return the share of expected words found in order (longest common subsequence) among twice as many of the prediction."""
    wanted = words(expected)
    given = words(prediction)[: 2 * len(wanted)]
    previous = [0] * (len(given) + 1)
    for word in wanted:
        row = [0]
        for j, other in enumerate(given):
            row.append(previous[j] + 1 if word == other else max(previous[j + 1], row[j]))
        previous = row
    return previous[-1] / len(wanted) if wanted else 0.0


def match_score(exact: bool, fuzzy: float) -> float:
    """Return 1 to 10: 10 for an exact match, 1 up to a third of the words, a straight line between."""
    return 10.0 if exact else 1.0 + 9.0 * max(0.0, (fuzzy - UNRELATED_BELOW) / (1.0 - UNRELATED_BELOW))
