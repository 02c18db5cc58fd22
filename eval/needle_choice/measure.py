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
    needles = [needle(codec, sample) for sample in range(spec.samples_per_cell)]
    cells = list(CellBuilder(codec, spec, context).cells_of_ids([wording for wording, _ in needles]))
    passes = {key: each for cell in cells for key, each in passes_of(cell, needles[cell.sample][1]).items()}
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
    for cell in cells:
        words = needles[cell.sample][1]
        found: dict[int, float] = {}
        for key in passes_of(cell, words):
            found |= zip(passes[key].words, records[key]["logp"], strict=True)
        others = max(logp for place, logp in found.items() if place)
        scores = {"right": 100.0 * (found[0] > others), "logp": found[0], "logp_others": others}
        rows.append({**cell.place, **scores, "num_tokens": len(words[0])})
    return pd.DataFrame(rows)


def needle(codec: TextCodec, sample: int) -> tuple[Wording, list[list[int]]]:
    """Return the sentence that a sample hides, and the ids of the ten words that are offered, the true one first.

    The ten are drawn from the words of as few tokens as ten of them have. ValueError where no ten have as many.
    """
    made = Choices.read()
    holder = made.holders[sample % len(made.holders)]
    query = made.wording(holder, made.words[0]).query
    ids = [codec.answer(query, word) for word in made.words]
    counts = [len(each) for each in ids]
    enough = [count for count in sorted(set(counts)) if counts.count(count) >= OFFERED]
    if not enough:
        raise ValueError(f"this tokeniser has no {OFFERED} words of {CHOICES.name} with as many tokens as each other")
    alike = [place for place, count in enumerate(counts) if count == enough[0]]
    drawn = np.random.default_rng([SEED, sample]).choice(alike, OFFERED, replace=False)
    return made.wording(holder, made.words[drawn[0]]), [ids[place] for place in drawn]


def passes_of(cell: Cell, words: list[list[int]]) -> dict[str, Pass]:
    """Return the passes that a cell takes, by key."""
    groups: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for place, word in enumerate(words):
        groups.setdefault(tuple(word[:-1]), {})[place] = word
    return {f"{cell.key}/{number}": Pass(cell.prompt, own) for number, own in enumerate(groups.values())}
