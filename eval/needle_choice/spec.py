"""Needle as a choice: the word of the hidden sentence against nine others.

Each sample hides a different sentence (eval/needle/choices.toml) at a different place of the haystack. All ten words have
equally many tokens, and the true one is drawn at random, so that guessing is right in 10% of the cases."""

from typing import Literal

import pandas as pd

from data.corpus import Counts
from eval.needle.spec import Grid, at_places
from eval.needle.wording import CHOICES, Choices
from models.spec_parts import PositiveInt, strict
from results.schema import integer, number
from training.spec import RunSpec

OFFERED = 10


@strict
class Spec(Grid):
    """Needle in a haystack as a choice of one word out of ten, by log-likelihood; guessing is right in 10% of the cases."""

    kind: Literal["needle_choice"] = "needle_choice"
    samples_per_cell: PositiveInt = 64
    """Needles per cell. If the words are single tokens, as common words are, all ten take one forward pass."""

    SENTENCES = CHOICES
    SCHEMA = at_places(
        {
            "right": number(0, 100),  # percent: 100 if the true word is the likeliest, else 0
            "logp": number(high=0),  # nats, of the true word
            "logp_others": number(high=0),  # of the likeliest of the nine
            "num_tokens": integer(1),  # of a word
        }
    )

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        made = Choices.read()
        longest = max(made.words, key=len)
        self.check_cells([made.wording(holder, longest) for holder in made.holders], run.data.tokenizer)

    def summary(self, rows: pd.DataFrame) -> list[str]:
        means = rows.groupby("length")["right"].mean()
        return [f"  length {length}: {share:.0f}% right (guessing: 10%)" for length, share in means.items()]
