"""The needle as a choice: the word of the hidden sentence among nine that the text does not tell.

Each sample hides another sentence at another place of the haystack (eval/needle/choices.toml). All ten words have as many
tokens as each other, and which is the true one is drawn: guessing is right in 10% of the cases.
"""

from dataclasses import replace
from typing import Literal, Self

import pandas as pd
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from eval.needle.spec import Grid, haystack_name
from eval.needle.wording import CHOICES, Choices
from eval.shell.sources import digest
from eval.shell.spec import Setting
from models.spec import ModelSpec
from models.spec_parts import STRICT, PositiveInt
from results.schema import Schema, integer, number, text
from training.spec import RunSpec

OFFERED = 10


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec(Grid):
    """Needle in a haystack as a choice of one word out of ten, by log-likelihood; guessing is right in 10%."""

    kind: Literal["needle_choice"] = "needle_choice"
    mode: Literal["easy", "standard"] = "standard"
    samples_per_cell: PositiveInt = 64
    """Needles per cell."""

    SCHEMA = Schema(
        {
            "mode": text(("easy", "standard")),
            "length": integer(1),
            "depth": number(0, 100),
            "sample": integer(0),
            "right": number(0, 100),  # percent: 100 where the true word is the likeliest
            "logp": number(high=0),  # nats, of the true word
            "logp_others": number(high=0),  # of the likeliest of the nine
            "num_tokens": integer(1),  # of a word
        },
        key=("mode", "length", "depth", "sample"),
    )

    def bound(self, setting: Setting) -> Self:
        text = haystack_name(self.text, setting)
        return replace(self, text=text, wording=digest(CHOICES), precision=self.precision or setting.precision)

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        made = Choices.read()
        longest = max(made.words, key=len)
        self.check_cells([made.wording(holder, longest) for holder in made.holders], run.data.tokenizer)

    def flops(self, model: ModelSpec) -> float:
        """Words of one token, as common words are, take one pass for all ten."""
        prompts = self.samples_per_cell * len(self.depths)
        return float(sum(prompts * length * model.flops_per_token(length) for length in self.lengths))

    def summary(self, rows: pd.DataFrame) -> list[str]:
        means = rows.groupby("length")["right"].mean()
        return [f"  length {length}: {share:.0f}% right of 10 (guessing) to 100" for length, share in means.items()]
