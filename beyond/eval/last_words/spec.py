"""Last words of held-out passages, in the manner of LAMBADA: words that the passage tells but its last lines do not.

A passage is the `words` words before a word to predict. The word is chosen without a model: it has four letters or more, is
none of the `common` most frequent words of the held-out text, ends a sentence (unless `anywhere`), and has occurred in the
passage before, but not among its last `near` words. Of all such words in the documents, evenly spaced ones are taken."""

from typing import Literal

import numpy as np
import pandas as pd

from eval.runner.heldout import HeldoutSpec
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number

TOKENS_PER_WORD = 2
"""Used to estimate costs."""


@strict
class Spec(HeldoutSpec):
    """Last words that can be told from a held-out passage, in the manner of LAMBADA: accuracy and perplexity."""

    kind: Literal["last_words"] = "last_words"
    num_documents: PositiveInt
    """Number of documents, the first of the held-out split, from which passages are taken."""
    num_items: PositiveInt = 5000
    """Largest number of passages."""
    words: PositiveInt = 200
    """Words of a passage before the word to predict."""
    near: PositiveInt = 20
    """Last words of the passage, among which the word does not occur; also measured as the only context."""
    common: PositiveInt = 500
    """Number of most frequent words that are never to be predicted."""
    anywhere: bool = False
    """Ask for words that end no sentence, too (for text that is code)."""

    SCHEMA = Schema(
        {
            "item": integer(0),
            "document": integer(0),
            "logp": number(high=0),  # nats, of the word given the passage
            "right": number(0, 100),  # percent: 100 if greedy decoding gives the word, else 0
            "logp_near": number(high=0),  # the same, given the last words alone
            "right_near": number(0, 100),
            "num_tokens": integer(1),  # of the word
        },
        key=("item",),
    )

    def __post_init__(self) -> None:
        if self.near >= self.words:
            raise ValueError(f"near {self.near}: a passage of {self.words} words has nothing before its last {self.near}")

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
