"""RULER's single-needle tasks S-NIAH 1 to 3 (arXiv 2404.06654) through the LM evaluation harness, at several lengths.

A magic number (1 and 2) or UUID (3) of a key is hidden in a repeated sentence (1) or in text (2 and 3), and asked for. Frame
and scoring are the harness's; its own makers of examples need packages and essays from the network, so examples are made here,
of the same form: keys are of our own word lists, and the text is the held-out one unless --haystack names essays.
"""

from dataclasses import replace
from typing import Literal

import pandas as pd
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from data.spec import DataSpec
from eval.needle import reads_text as reads
from eval.needle import text_of
from eval.shell.kind import Needs, Precision
from eval.shell.kind import check as check
from eval.shell.sources import Sources
from models.spec import STRICT, ModelSpec, PositiveInt
from results.schema import Schema, integer, number, text

__all__ = ["reads"]
VERSION = 1
"""Of the maker of examples: raise it with whatever changes one."""
Task = Literal["niah_single_1", "niah_single_2", "niah_single_3"]
TASKS: tuple[Task, ...] = ("niah_single_1", "niah_single_2", "niah_single_3")
CHOICES = 4


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """`samples` of each task at each of `lengths` (tokens, answer included).

    `answers`: "generate" up to `max_new_tokens` and look for the value, as RULER does, or "choose" the likeliest of four
    values, in which models too small to spell one differ (guessing gives a quarter). `text`: "heldout", or the digest of a
    folder of texts. `version`: of the examples.
    """

    kind: Literal["ruler"] = "ruler"
    tasks: tuple[Task, ...] = TASKS
    lengths: tuple[PositiveInt, ...]
    samples: PositiveInt = 500
    answers: Literal["generate", "choose"] = "generate"
    max_new_tokens: PositiveInt = 128
    text: str = "heldout"
    version: PositiveInt = VERSION
    precision: Precision | None = None

    @model_validator(mode="after")
    def _check(self) -> "Spec":
        if not self.tasks or not self.lengths:
            raise ValueError("name at least one task and one length")
        if self.version != VERSION:
            raise ValueError(f"version {self.version}: this suite makes examples of version {VERSION}; plan it again")
        return self


SCHEMA = Schema(
    {
        "task": text(TASKS),
        "length": integer(1),
        "value": number(0, 100),  # percent
        "stderr": number(0, nullable=True),
        "num_examples": integer(1),
    },
    key=("task", "length"),
)
NEEDS: Needs = "weights"


def bound(spec: Spec, corpus: DataSpec | None, sources: Sources, precision: Precision, machine: str) -> Spec:
    return replace(spec, text=text_of(spec, corpus, sources), precision=spec.precision or precision)  # type: ignore[arg-type]


def flops(spec: Spec, model: ModelSpec) -> float:
    each = CHOICES if spec.answers == "choose" else 1
    requests = each * len(spec.tasks) * spec.samples
    return float(sum(requests * length * model.flops_per_token(length) for length in spec.lengths))


def summary(rows: pd.DataFrame) -> list[str]:
    return [f"  {row.task} at {row.length} tokens: {row.value:.1f} +- {row.stderr:.1f} of 100" for row in rows.itertuples()]
