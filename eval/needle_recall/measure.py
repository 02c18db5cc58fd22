"""Needle recall: teacher-forced scores of the answers, with and without the needle in the text."""

import pandas as pd

from eval.needle.haystack import CellBuilder
from eval.needle.wording import read_facts
from eval.needle_recall.spec import Spec
from eval.runner.batching import Row, recorded_ends, score
from eval.runner.context import Context
from eval.runner.loading import Loaded


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per needle. Every text has exactly length - reserve of the model's tokens, with or without the needle.
    ValueError if the sentences are not the spec's, or a length is too short for them."""
    spec.check_sentences()
    facts, codec = read_facts(), loaded.tokenizer
    builder = CellBuilder(codec, spec, context)
    cells = [(cell, f"{cell.length}/without/{cell.sample}") for cell in builder.cells(facts)]
    asked: dict[str, Row] = {}  # prompt and answer, tokens of the answer
    for cell, bare in cells:
        wording = facts[cell.sample % len(facts)]
        answer = codec.answer(wording.query, cell.expected)
        asked[cell.key] = [*cell.prompt, *answer], len(answer)
        if bare not in asked:
            asked[bare] = [*builder.without_needle(wording, cell.length, cell.sample), *answer], len(answer)
    found = recorded_ends(
        "needle recall", asked, loaded, context, spec.precision, lambda key, logits: {"logprob": score(asked[key], logits)[0]}
    )
    rows = []
    for cell, bare in cells:
        with_it, without = found[cell.key]["logprob"], found[bare]["logprob"]
        scores = {"logp_with": with_it, "logp_without": without, "recall_nats": with_it - without}
        rows.append({**cell.place, **scores, "num_tokens": asked[cell.key][1]})
    return pd.DataFrame(rows)
