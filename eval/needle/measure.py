"""Needle in a haystack: greedy answers and their scores."""

from typing import Any

import numpy as np
import pandas as pd

from eval.needle import Spec
from eval.needle.cells import Cell, CellBuilder
from eval.needle.match import exact_match, fuzzy_match, match_score
from eval.needle.passkey import passkey
from eval.needle.wording import DEFAULT_WORDING, Wording
from eval.shell.context import Context
from eval.shell.generation import generate
from eval.shell.loading import Loaded
from eval.shell.sources import digest
from eval.shell.text import TextCodec
from training.progress import Progress

PASSKEY_SEED = 20250302
PASSKEY_NEW_TOKENS = 12


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Rows of SCHEMA, one per prompt.

    Documents of easy and standard cells have exactly length - reserve tokens as the model reads them, BOS and query
    not counted; pass-key prompts have exactly `length` tokens, everything counted. Generation is greedy.
    `context.extras` gets prompt_tokens: {length: longest prompt, BOS and query included}.
    """
    wording = _wording(spec, context)
    _check_judge(spec, context)
    tokenizer = loaded.tokenizer
    cells = build_cells(tokenizer, spec, context, wording)
    done = context.partial.records
    todo = [cell for cell in cells if cell.key not in done]
    with Progress(f"needle ({spec.mode})", len(cells), len(cells) - len(todo)) as progress:

        def keep(index: int, new_ids: list[int]) -> None:
            context.partial.add(todo[index].key, {"prediction": tokenizer.decode(new_ids)})
            progress.advance()

        generate(
            loaded.model,
            [cell.prompt for cell in todo],
            context.compute(spec.precision),
            max_new_tokens=spec.max_new_tokens if spec.mode != "passkey" else min(spec.max_new_tokens, PASSKEY_NEW_TOKENS),
            stop_ids=() if tokenizer.eos_id is None else (tokenizer.eos_id,),
            batch_tokens=context.sources.batch_tokens,
            on_done=keep,
        )
    longest = {length: max(len(c.prompt) for c in cells if c.length == length) for length in spec.lengths}
    context.extras["prompt_tokens"] = {str(length): tokens for length, tokens in longest.items()}
    rows = [_row(cell, spec, done[cell.key]["prediction"]) for cell in cells]
    if spec.judge is not None:
        _judged(rows, spec.judge, context, wording)
    return pd.DataFrame(rows)


def build_cells(codec: TextCodec, spec: Spec, context: Context, wording: Wording) -> list[Cell]:
    """All prompts of the grid."""
    builder = CellBuilder(codec, spec, context)
    if spec.mode != "passkey":
        return list(builder.cells([wording]))
    cells = []
    for length in spec.lengths:
        for depth in spec.depths:
            for sample in range(spec.samples_per_cell):
                rng = np.random.default_rng([PASSKEY_SEED, length, round(depth * 1000), sample])
                item = passkey(codec, builder.ids, length=length, depth=depth, num_keys=spec.num_keys, rng=rng)
                cells.append(Cell(length, depth, sample, item.prompt, item.value))
    return cells


def _wording(spec: Spec, context: Context) -> Wording:
    """What the spec names by digest. ValueError if it is not what is given."""
    path = context.sources.prompts or DEFAULT_WORDING
    if spec.mode != "passkey" and digest(path) != spec.wording:
        raise ValueError(
            f"{path} has the content {digest(path)}, the spec asks for wording {spec.wording}; name it with --prompts"
        )
    return Wording.read(path)


def _row(cell: Cell, spec: Spec, prediction: str) -> dict[str, Any]:
    if spec.mode == "passkey":
        given = prediction.strip()[: len(cell.expected)]  # what follows does not count, as in the other modes
        exact = given == cell.expected
        fuzzy = sum(a == b for a, b in zip(given, cell.expected, strict=False)) / len(cell.expected)
    else:
        exact, fuzzy = exact_match(prediction, cell.expected), fuzzy_match(prediction, cell.expected)
    return {
        "mode": spec.mode,
        "length": cell.length,
        "depth": cell.depth,
        "sample": cell.sample,
        "score": match_score(exact, fuzzy),
        "exact": float(exact),
        "fuzzy": fuzzy,
        "scored_by": "match",
        "prediction": prediction,
    }


def _check_judge(spec: Spec, context: Context) -> None:
    """Before anything is generated."""
    if spec.judge is not None:
        from eval.needle.judge import JudgeSettings

        JudgeSettings.of(spec.judge, context)


def _judged(rows: list[dict[str, Any]], model: str, context: Context, wording: Wording) -> None:
    """Replace the match scores by the judge's; an empty answer gets the lowest score without being sent."""
    from eval.needle import judge

    asked = [row for row in rows if row["prediction"].strip()]
    prompts = [wording.judge_prompt(row["prediction"]) for row in asked]
    verdicts = judge.Judge(model, judge.JudgeSettings.of(model, context)).score_all(prompts)
    for row in rows:
        row["scored_by"], row["score"] = model, 1.0
    for row, verdict in zip(asked, verdicts, strict=True):
        row["score"] = float(verdict.score)
