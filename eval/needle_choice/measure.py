"""Needle as a choice: log-likelihoods of ten words after one prompt."""

import numpy as np
import pandas as pd
import torch

from eval.needle.haystack import Cell, CellBuilder
from eval.needle.wording import CHOICES, Choices, Wording
from eval.needle_choice.spec import OFFERED, Spec
from eval.runner.batching import Row, recorded_ends
from eval.runner.context import Context
from eval.runner.loading import Loaded
from eval.runner.text import TextCodec

SEED = 20251124


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per needle. Every text has exactly length - reserve tokens. ValueError if the sentences are not the spec's,
    a length is too short for them, or the tokeniser does not encode ten of the words to equally many tokens."""
    spec.check_sentences()
    builder = CellBuilder(loaded.tokenizer, spec, context)
    hidden = needles(loaded.tokenizer, len(list(builder.places())))
    cells = builder.cells_of_ids([wording for wording, _ in hidden])
    taken = [(cell, passes_of(cell, words)) for cell, (_, words) in zip(cells, hidden, strict=True)]
    passes = {key: words for _, own in taken for key, words in own.items()}
    asked: dict[str, Row] = {}
    for cell, own in taken:
        for key, words in own.items():
            word = next(iter(words.values()))  # all words of a pass give the same: the last token is not an input
            asked[key] = [*cell.prompt, *word], len(word)

    def read(key: str, logits_KV: torch.Tensor) -> dict[str, list[float]]:
        return {"logp": log_probabilities(passes[key], logits_KV)}

    records = recorded_ends(f"needle choice ({spec.mode})", asked, loaded, context, spec.precision, read)
    rows = []
    for cell, own in taken:
        logp = {place: logp for key, words in own.items() for place, logp in zip(words, records[key]["logp"], strict=True)}
        true, others = logp.pop(0), max(logp.values())
        scores = {"right": 100.0 * (true > others), "logp": true, "logp_others": others}
        rows.append({**cell.place, **scores, "num_tokens": asked[next(iter(own))][1]})
    return pd.DataFrame(rows)


def needles(codec: TextCodec, count: int) -> list[tuple[Wording, list[list[int]]]]:
    """Return for each place of a grid its hidden sentence and the ids of the ten offered words, the true one first. Every place
    draws its own words, so that a model's preference for a word is not shared between places."""
    made = Choices.read()
    offers = [_alike(codec, made, holder) for holder in made.holders[:count]]
    drawn = []
    for place in range(count):
        holder, alike = made.holders[place % len(made.holders)], offers[place % len(offers)]
        ten = np.random.default_rng([SEED, place]).choice(list(alike), OFFERED, replace=False)
        drawn.append((made.wording(holder, made.words[ten[0]]), [alike[number] for number in ten]))
    return drawn


def _alike(codec: TextCodec, made: Choices, holder: str) -> dict[int, list[int]]:
    """Return the ids, by word number, of the words that have n tokens after a holder's query, for the smallest n that at least
    ten words have."""
    query = made.wording(holder, made.words[0]).query
    ids = [codec.answer(query, word) for word in made.words]
    counts = [len(each) for each in ids]
    enough = [count for count in sorted(counts) if counts.count(count) >= OFFERED]
    if not enough:
        raise ValueError(f"this tokeniser does not encode {OFFERED} words of {CHOICES.name} to equally many tokens")
    return {number: each for number, each in enumerate(ids) if len(each) == enough[0]}


def passes_of(cell: Cell, words: list[list[int]]) -> dict[str, dict[int, list[int]]]:
    """Return the forward passes of a cell by key, each with its words by place among the ten. Words that differ only in their
    last token share a pass."""
    groups: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for place, word in enumerate(words):
        groups.setdefault(tuple(word[:-1]), {})[place] = word
    return {f"{cell.key}/{number}": own for number, own in enumerate(groups.values())}


def log_probabilities(words: dict[int, list[int]], logits_KV: torch.Tensor) -> list[float]:
    """Return the log-probability of every word of a pass."""
    logp_KV = logits_KV.log_softmax(-1).double().cpu()
    return [float(logp_KV[range(len(word)), word].sum()) for word in words.values()]
