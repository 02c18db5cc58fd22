"""Recall: accuracy on the synthetic task that a run was trained on (data/recall.py).

Rows: one per sequence, with the numbers of its queries, of correct answers, and of answers with an earlier value of the key
(`num_stale`). Guessing gives 1 / num_symbols."""

from dataclasses import replace
from typing import Literal, Self

import pandas as pd

from data.corpus import Counts
from eval.runner.spec import Content, EvalSpec, PrecisionOption, Setting
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer
from training.spec import RunSpec


@strict
class Spec(EvalSpec):
    """Accuracy on the synthetic recall task that a run was trained on, over held-out sequences."""

    kind: Literal["recall"] = "recall"
    num_sequences: PositiveInt = 512
    """Number of held-out sequences. The answer to a query is the token with the largest logit."""
    seq_len: PositiveInt | None = None
    """Sequence length of the task, filled in."""
    corpus: Content = None
    """Fingerprint of the task."""
    precision: PrecisionOption = None

    SCHEMA = Schema(
        {"sequence": integer(0), "num_queries": integer(1), "num_correct": integer(0), "num_stale": integer(0)},
        key=("sequence",),
    )

    def bound(self, setting: Setting) -> Self:
        length = None if setting.corpus is None else setting.corpus.document_len
        return replace(super().bound(setting), seq_len=length)

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        if run.data.recall is None:
            raise ValueError(f"recall is measured only for runs on the recall task; {run.name} was trained on text")

    def tokens_read(self) -> list[tuple[int, int]]:
        assert self.seq_len is not None, "an unbound spec"
        return [(self.num_sequences * self.seq_len, self.seq_len)]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        queries = rows["num_queries"].sum()
        return [
            f"  {rows['num_correct'].sum() / queries:.4f} of {queries:,} queries answered correctly (1 is perfect), "
            f"{rows['num_stale'].sum() / queries:.4f} with an earlier value of the key"
        ]
