"""The needle as a choice: log-likelihoods of ten words behind one prompt."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from eval.needle.cells import Cell, CellBuilder
from eval.needle.wording import CHOICES, Choices, Wording
from eval.needle_choice.spec import OFFERED, Spec
from eval.shell.batching import at_ends, recorded
from eval.shell.context import Context
from eval.shell.loading import Loaded
from eval.shell.sources import digest
from eval.shell.text import TextCodec

SEED = 20251124


@dataclass(frozen=True)
class Pass:
    """Forward pass for the words, by place among the ten, that differ in their last token alone (all, where words have one)."""

    prompt: list[int]
    words: dict[int, list[int]]

    @property
    def row(self) -> tuple[list[int], int]:
        """Ids that are read, the last of any of the words included, and the tokens of a word."""
        word = next(iter(self.words.values()))
        return [*self.prompt, *word], len(word)

    def read(self, logits_KV: torch.Tensor) -> list[float]:
        """Return the log-probability of every word."""
        logp_KV = logits_KV.log_softmax(-1).double().cpu()
        return [float(logp_KV[range(len(word)), word].sum()) for word in self.words.values()]


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per needle. Every text has exactly length - reserve tokens.

    ValueError: the sentences are not those of the spec, a length is too short for them, or the tokeniser has no ten words of as
    many tokens.
    """
    if digest(CHOICES) != spec.wording:
        raise ValueError(f"the evaluation asks for sentences {spec.wording}; this version has {digest(CHOICES)}: plan it again")
    codec = loaded.tokenizer
    builder = CellBuilder(codec, spec, context)
    hidden = needles(codec, len(list(builder.places())))
    cells = list(zip(builder.cells_of_ids([wording for wording, _ in hidden]), (words for _, words in hidden), strict=True))
    passes = {key: each for cell, words in cells for key, each in passes_of(cell, words).items()}
    compute = context.compute(spec.precision)

    def run(keys: list[str]) -> list[dict[str, list[float]]]:
        own = [passes[key] for key in keys]
        return [
            {"logp": logp}
            for logp in at_ends(loaded.model, [each.row for each in own], compute, lambda row, logits: own[row].read(logits))
        ]

    lengths = {key: len(each.row[0]) for key, each in passes.items()}
    records = recorded(f"needle choice ({spec.mode})", lengths, context, compute, run)
    rows = []
    for cell, words in cells:
        found: dict[int, float] = {}
        for key in passes_of(cell, words):
            found |= zip(passes[key].words, records[key]["logp"], strict=True)
        others = max(logp for place, logp in found.items() if place)
        scores = {"right": 100.0 * (found[0] > others), "logp": found[0], "logp_others": others}
        rows.append({**cell.place, **scores, "num_tokens": len(words[0])})
    return pd.DataFrame(rows)


def needles(codec: TextCodec, count: int) -> list[tuple[Wording, list[list[int]]]]:
    """Return for each place of a grid the sentence that it hides, and the ids of the ten words that are offered, the true one
    first. Every place draws its own, so that a model's liking for a word is not shared between them.

    The ten are drawn from the words of as few tokens as ten of them have. ValueError where no ten have as many.
    """
    made = Choices.read()
    offers = {holder: _alike(codec, made, holder) for holder in made.holders[:count]}
    drawn = []
    for place in range(count):
        holder = made.holders[place % len(made.holders)]
        alike = offers[holder]
        ten = np.random.default_rng([SEED, place]).choice(list(alike), OFFERED, replace=False)
        drawn.append((made.wording(holder, made.words[ten[0]]), [alike[number] for number in ten]))
    return drawn


def _alike(codec: TextCodec, made: Choices, holder: str) -> dict[int, list[int]]:
    """Return the ids, behind a holder's query, of the words of as few tokens as ten of them have, by number."""
    query = made.wording(holder, made.words[0]).query
    ids = [codec.answer(query, word) for word in made.words]
    counts = [len(each) for each in ids]
    enough = [count for count in sorted(set(counts)) if counts.count(count) >= OFFERED]
    if not enough:
        raise ValueError(f"this tokeniser has no {OFFERED} words of {CHOICES.name} with as many tokens as each other")
    return {number: each for number, each in enumerate(ids) if len(each) == enough[0]}


def passes_of(cell: Cell, words: list[list[int]]) -> dict[str, Pass]:
    """Return the passes that a cell takes, by key."""
    groups: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for place, word in enumerate(words):
        groups.setdefault(tuple(word[:-1]), {})[place] = word
    return {f"{cell.key}/{number}": Pass(cell.prompt, own) for number, own in enumerate(groups.values())}
