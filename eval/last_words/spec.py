"""Last words of held-out passages, as LAMBADA asks for them: words that the passage tells, and its last lines do not.

A passage is the last `words` words up to a word that is asked for. The rule knows no model: the word has four letters or more,
is none of the `common` most frequent of the held-out text, ends a sentence (unless `anywhere`), and has stood in the passage
before, but not among its last `near` words. Of all such words in the documents, evenly spaced ones are taken."""

from typing import Literal

import numpy as np
import pandas as pd

from eval.shell.heldout import HeldoutSpec
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number

TOKENS_PER_WORD = 2
"""For estimating costs."""


@strict
class Spec(HeldoutSpec):
    """Last words of held-out passages that need the passage, in the manner of LAMBADA: accuracy and perplexity."""

    kind: Literal["last_words"] = "last_words"
    num_documents: PositiveInt
    """First documents of the held-out split, from which passages are taken."""
    num_items: PositiveInt = 5000
    """Passages, or as many as there are."""
    words: PositiveInt = 200
    """Words of a passage before the one that is asked for."""
    near: PositiveInt = 20
    """Last words of the passage among which it has not stood; they are also tried alone."""
    common: PositiveInt = 500
    """Most frequent words, which are not asked for."""
    anywhere: bool = False
    """Ask for words that end no sentence, too (for text that is code)."""

    SCHEMA = Schema(
        {
            "item": integer(0),
            "document": integer(0),
            "logp": number(high=0),  # nats, of the word given the passage
            "right": number(0, 100),  # percent: 100 where greedy decoding gives the word
            "logp_near": number(high=0),  # the same, given the last words alone
            "right_near": number(0, 100),
            "num_tokens": integer(1),  # of the word
        },
        key=("item",),
    )

    @property
    def extent(self) -> tuple[int, int]:
        return self.num_documents, self.words

    def tokens_read(self) -> list[tuple[int, int]]:
        lengths = [TOKENS_PER_WORD * words for words in (self.words, self.near)]
        return [(self.num_items * length, length) for length in lengths]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        mean = rows.mean()
        return [
            f"  given {name}: {mean[f'right{end}']:.1f}% right, perplexity {np.exp(-mean[f'logp{end}']):.2f} (1 is perfect)"
            for name, end in (("the passage", ""), (f"its last {self.near} words", "_near"))
        ]
