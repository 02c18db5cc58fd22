"""Needle in a haystack: greedy answers and their scores. Match scores need no judge: the prompt ends with the beginning of the
answer, so a correct continuation is the rest of the sentence."""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from eval.needle.haystack import Cell, CellBuilder
from eval.needle.spec import Spec
from eval.needle.wording import DEFAULT_WORDING, NAMES, Wording, words
from eval.runner.context import Context
from eval.runner.generation import answered
from eval.runner.loading import Loaded
from eval.runner.sources import checked
from eval.runner.text import TextCodec

if TYPE_CHECKING:
    from eval.needle.judge import Judge

PASSKEY_SEED = 20250302
PASSKEY_NEW_TOKENS = 12
UNRELATED_BELOW = 1 / 3  # share of expected words that unrelated English reaches by chance


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per prompt. Documents of easy and standard cells have exactly length - reserve of the model's tokens,
    without BOS and query; pass-key prompts have exactly `length`, with both. Generation is greedy. `context.extras` gets
    prompt_tokens: {length: longest prompt, with BOS and query}."""
    path, limit, judge = context.sources.prompts or DEFAULT_WORDING, spec.max_new_tokens, None
    if spec.mode == "passkey":
        limit = min(limit, PASSKEY_NEW_TOKENS)
    else:
        checked("wording", str(spec.wording), path, "--prompts")
    wording = Wording.read(path)
    if spec.judge is not None:  # refused before anything is generated
        from eval.needle import judge as asking

        judge = asking.Judge.of(spec.judge, context)
    cells = build_cells(loaded.tokenizer, spec, context, wording)
    prompts = {cell.key: cell.prompt for cell in cells}
    answers = answered(f"needle ({spec.mode})", prompts, loaded, context, spec.precision, limit)
    longest = {str(length): max(len(c.prompt) for c in cells if c.length == length) for length in spec.lengths}
    context.extras["prompt_tokens"] = longest
    rows = [_row(cell, answers[cell.key]["prediction"]) for cell in cells]
    if judge is not None:
        _judged(rows, judge, wording)
    return pd.DataFrame(rows)


def build_cells(codec: TextCodec, spec: Spec, context: Context, wording: Wording) -> list[Cell]:
    builder = CellBuilder(codec, spec, context)
    if spec.mode != "passkey":
        return list(builder.cells([wording]))
    cells = []
    for length, depth, sample in builder.places():
        rng = np.random.default_rng([PASSKEY_SEED, length, round(depth * 1000), sample])
        prompt, value = passkey(codec, builder.ids, length=length, depth=depth, num_keys=spec.num_keys, rng=rng)
        cells.append(Cell(spec.mode, length, depth, sample, prompt, value))
    return cells


def key_line(name: str, value: str) -> str:
    return f"{query_line(name)} {value}.\n"


def query_line(name: str) -> str:
    return f"\nThe pass key of {name} is"


def draw_keys(num_keys: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Draw distinct names, each with a value of four distinct digits: if digits were repeated, copying what followed the last
    digit would not be enough."""
    names = [NAMES[i] for i in rng.permutation(len(NAMES))[:num_keys]]
    return [(name, "".join(map(str, rng.permutation(10)[:4]))) for name in names]


def passkey(
    codec: TextCodec, filler: Sequence[int], *, length: int, depth: float, num_keys: int, rng: np.random.Generator
) -> tuple[list[int], str]:
    """Make a prompt of exactly `length` token ids, with BOS and query, and return it with the value that should follow.

    Key-value lines, which small models can learn, are hidden in filler: the queried one at `depth` percent, the `num_keys` - 1
    others at random places. ValueError if the lines do not fit."""
    keys = draw_keys(num_keys, rng)
    lines = [codec.encode(key_line(name, value)) for name, value in keys]
    asked, expected = keys[0]
    query = codec.encode(query_line(asked))
    room = length - 1 - len(query) - sum(map(len, lines))
    if room < 0:
        raise ValueError(f"length {length} is too short for {num_keys} key lines and a query: at least {length - room} tokens")
    filler = take(filler, room, rng)
    places = [round(room * depth / 100), *rng.integers(0, room + 1, num_keys - 1).tolist()]
    body, start = [codec.bos_id], 0
    for place, index in sorted(zip(places, range(num_keys), strict=True)):
        body += [*filler[start:place], *lines[index]]
        start = place
    return [*body, *filler[start:], *query], expected


def take(filler: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """Take `count` ids from a random place of the filler, wrapping around at its end."""
    start = int(rng.integers(0, len(filler)))
    return list(islice(cycle(filler), start, start + count))


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


def match_score(exact: bool, fuzzy: float) -> float:
    """Return a score of 1 to 10: 10 for an exact match, 1 for up to a third of the words, linear in between."""
    return 10.0 if exact else 1.0 + 9.0 * max(0.0, (fuzzy - UNRELATED_BELOW) / (1.0 - UNRELATED_BELOW))
