"""Needle recall: teacher-forced scores of the answers, with the needle in the text and without it."""

import pandas as pd

from eval.needle.cells import CellBuilder
from eval.needle.wording import FACTS, read_facts
from eval.needle_recall.spec import Spec
from eval.shell.batching import recorded, score
from eval.shell.context import Context
from eval.shell.loading import Loaded
from eval.shell.sources import digest


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per needle. Every text has exactly length - reserve tokens as the model reads it, needle or not.

    ValueError: the sentences are not those of the spec, or a length is too short for them.
    """
    if digest(FACTS) != spec.wording:
        raise ValueError(f"the evaluation asks for sentences {spec.wording}; this version has {digest(FACTS)}: plan it again")
    facts, codec = read_facts(), loaded.tokenizer
    builder = CellBuilder(codec, spec, context)
    cells = list(builder.cells(facts))
    scored: dict[str, tuple[list[int], int]] = {}  # by key: ids of prompt and answer, tokens of the answer
    for cell in cells:
        wording = facts[cell.sample % len(facts)]
        answer = codec.answer(wording.query, cell.expected)
        scored[cell.key] = ([*cell.prompt, *answer], len(answer))
        bare = _bare(cell.length, cell.sample)
        if bare not in scored:
            scored[bare] = ([*builder.without_needle(wording, cell.length, cell.sample), *answer], len(answer))
    compute = context.compute(spec.precision)

    def run(keys: list[str]) -> list[dict[str, float]]:
        return [{"logprob": logprob} for logprob, _ in score(loaded.model, [scored[key] for key in keys], compute)]

    records = recorded("needle recall", {key: len(ids) for key, (ids, _) in scored.items()}, context, compute, run)
    rows = []
    for cell in cells:
        with_it, without = (records[key]["logprob"] for key in (cell.key, _bare(cell.length, cell.sample)))
        scores = {"logp_with": with_it, "logp_without": without, "recall_nats": with_it - without}
        rows.append({**cell.place, **scores, "num_tokens": scored[cell.key][1]})
    return pd.DataFrame(rows)


def _bare(length: int, sample: int) -> str:
    return f"{length}/without/{sample}"
