"""Needle in a haystack: greedy answers and their scores."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from eval.needle.cells import Cell, CellBuilder
from eval.needle.match import exact_match, fuzzy_match, match_score
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


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per prompt.

    Documents of easy and standard cells have exactly length - reserve tokens as the model reads them, BOS and query
    not counted; pass-key prompts have exactly `length` tokens, everything counted. Generation is greedy.
    `context.extras` gets prompt_tokens: {length: longest prompt, BOS and query included}.
    """
    wording = _wording(spec, context)
    judge = _judge(spec, context)  # refused before anything is generated
    cells = build_cells(loaded.tokenizer, spec, context, wording)
    limit = spec.max_new_tokens if spec.mode != "passkey" else min(spec.max_new_tokens, PASSKEY_NEW_TOKENS)
    answers = context.partial.records
    with Progress(f"needle ({spec.mode})", len(cells), len(answers)) as progress:
        answer(loaded, {cell.key: cell.prompt for cell in cells}, context, spec.precision, limit, progress)
    longest = {length: max(len(c.prompt) for c in cells if c.length == length) for length in spec.lengths}
    context.extras["prompt_tokens"] = {str(length): tokens for length, tokens in longest.items()}
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


def _wording(spec: Spec, context: Context) -> Wording:
    """Read the wording that the spec names by digest. ValueError if it is not what is given."""
    path = context.sources.prompts or DEFAULT_WORDING
    if spec.mode != "passkey":
        checked("wording", str(spec.wording), path, "--prompts")
    return Wording.read(path)


def _row(cell: Cell, prediction: str) -> dict[str, Any]:
    if cell.mode == "passkey":
        given = prediction.strip()[: len(cell.expected)]  # what follows does not count, as in the other modes
        exact = given == cell.expected
        fuzzy = sum(a == b for a, b in zip(given, cell.expected, strict=False)) / len(cell.expected)
    else:
        exact, fuzzy = exact_match(prediction, cell.expected), fuzzy_match(prediction, cell.expected)
    scores = {"score": match_score(exact, fuzzy), "exact": float(exact), "fuzzy": fuzzy}
    return {**cell.place, **scores, "scored_by": "match", "prediction": prediction}


def _judge(spec: Spec, context: Context) -> "Judge | None":
    if spec.judge is None:
        return None
    from eval.needle import judge

    return judge.Judge(spec.judge, judge.JudgeSettings.of(spec.judge, context))


def _judged(rows: list[dict[str, Any]], judge: "Judge", wording: Wording) -> None:
    """Replace the match scores by the judge's; an empty answer gets the lowest score without being sent."""
    asked = [row for row in rows if row["prediction"].strip()]
    verdicts = judge.score_all([wording.judge_prompt(row["prediction"]) for row in asked])
    for row in rows:
        row["scored_by"], row["score"] = judge.model, 1.0
    for row, verdict in zip(asked, verdicts, strict=True):
        row["score"] = float(verdict.score)
