"""RULER's single needles through the LM evaluation harness.

A key's magic number (1 and 2) or UUID (3) is hidden in repeated sentences (1) or in text (2 and 3), and asked for. Frame and
scoring are the harness's. Its own makers of examples need packages and essays from the network, so examples of the same form
are made here: keys come from our own word lists, and the text is held-out text unless --haystack names essays."""

from dataclasses import replace
from typing import Annotated, Literal, Self, get_args

import pandas as pd
import tyro

from eval.needle.spec import HaystackSpec
from eval.runner.spec import Once, PrecisionOption, Setting
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number
from results.schema import text as text_column

VERSION = 2
"""Version of the examples: raise it with every change of one. Texts of version 1 were up to 16% too short."""
Task = Literal["niah_single_1", "niah_single_2", "niah_single_3"]
TASKS: tuple[Task, ...] = get_args(Task)
CHOICES = 4


@strict
class Spec(HaystackSpec):
    """Single-needle tasks S-NIAH 1 to 3 of RULER (arXiv 2404.06654) through the LM evaluation harness, at several lengths."""

    kind: Literal["ruler"] = "ruler"
    tasks: Annotated[tuple[Task, ...], Once] = TASKS
    lengths: Annotated[tuple[PositiveInt, ...], Once]
    """Tokens of a prompt with its answer."""
    samples: PositiveInt = 500
    """Examples of each task at each length."""
    answers: Literal["generate", "choose"] = "generate"
    """generate: look for the value in the generated answer, as RULER does; choose: take the likeliest of four values, which
    also tells apart models that are too small to spell one (guessing gives a quarter)."""
    max_new_tokens: PositiveInt = 128
    text: str = "heldout"
    """Held-out text (of a corpus, whose fingerprint is filled in), or the digest of the folder given with --haystack."""
    version: Annotated[PositiveInt, tyro.conf.Suppress] = 1
    """Version of the examples, filled in; rows of version 1 do not name it."""
    precision: PrecisionOption = None

    SCHEMA = Schema(
        {
            "task": text_column(TASKS),
            "length": integer(1),
            "value": number(0, 100),  # percent
            "stderr": number(0, nullable=True),
            "num_examples": integer(1),
        },
        key=("task", "length"),
    )

    def bound(self, setting: Setting) -> Self:
        return replace(super().bound(setting), version=VERSION)

    def tokens_read(self) -> list[tuple[int, int]]:
        requests = (CHOICES if self.answers == "choose" else 1) * len(self.tasks) * self.samples
        return [(requests * length, length) for length in self.lengths]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        return [f"  {row.task} at {row.length} tokens: {row.value:.1f} +- {row.stderr:.1f} of 100" for row in rows.itertuples()]
