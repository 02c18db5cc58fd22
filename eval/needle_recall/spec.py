"""Needle recall in nats: a score without a floor.

Each sample hides a different sentence of eval/needle/facts.toml at a different place of the haystack. `recall_nats` is
log p(answer | text with the needle, question) - log p(answer | the same text without it, question), summed over the answer's
tokens: 0 is no recall, -log p without the needle is perfect recall."""

from typing import Literal

import pandas as pd

from data.corpus import Counts
from eval.needle.spec import Grid, at_places
from eval.needle.wording import FACTS, read_facts
from models.spec_parts import PositiveInt, strict
from results.schema import integer, number
from training.spec import RunSpec


@strict
class Spec(Grid):
    """Needle recall in nats: how much likelier a hidden sentence makes the answer that it holds; a score without a floor."""

    kind: Literal["needle_recall"] = "needle_recall"
    samples_per_cell: PositiveInt = 20
    """Needles per cell; beyond the 20 sentences they are repeated at other places."""

    SENTENCES = FACTS
    SCHEMA = at_places(
        {
            "logp_with": number(high=0),  # nats, of the whole answer
            "logp_without": number(high=0),  # the same for all depths
            "num_tokens": integer(1),  # of the answer
            "recall_nats": number(),
        }
    )

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        self.check_cells(read_facts(), run.data.tokenizer)

    def tokens_read(self) -> list[tuple[int, int]]:
        return [(self.samples_per_cell * (len(self.depths) + 1) * length, length) for length in self.lengths]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        table = rows.groupby("length")[["recall_nats", "logp_without"]].mean()
        return [
            f"  length {length}: mean recall {row['recall_nats']:.2f} nats (0 is none, {-row['logp_without']:.2f} is perfect)"
            for length, row in table.iterrows()
        ]
