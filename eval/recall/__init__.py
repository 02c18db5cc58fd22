"""Accuracy on the synthetic recall task that a run was trained on (data/recall.py), of sequences that no training sees.

Rows: one a sequence, with how many of its queries were answered, and how many with a value that the key had been given earlier
(`num_stale`). Guessing gives 1 / num_symbols.
"""

from dataclasses import replace
from typing import Literal

import pandas as pd
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from data.spec import DataSpec
from eval.shell.kind import Content, Needs, Precision
from eval.shell.sources import Sources, fingerprint
from models.spec import STRICT, ModelSpec, PositiveInt
from results.schema import Schema, integer
from training.spec import RunSpec


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """The largest logit at every query of `num_sequences` sequences. `corpus`: fingerprint of the task; `seq_len`: its length,
    of which `bound` knows."""

    kind: Literal["recall"] = "recall"
    num_sequences: PositiveInt = 512
    seq_len: PositiveInt | None = None
    corpus: Content = None
    precision: Precision | None = None


SCHEMA = Schema(
    {"sequence": integer(0), "num_queries": integer(1), "num_correct": integer(0), "num_stale": integer(0)},
    key=("sequence",),
)
NEEDS: Needs = "weights"


def reads(spec: Spec) -> tuple[str, ...]:
    return ()


def bound(spec: Spec, corpus: DataSpec | None, sources: Sources, precision: Precision, machine: str) -> Spec:
    length = None if corpus is None else corpus.document_len
    return replace(spec, corpus=fingerprint(corpus), seq_len=length, precision=spec.precision or precision)


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    if run.data.recall is None:
        raise ValueError(f"recall is measured of runs that were trained on the recall task; {run.name} was trained on text")


def flops(spec: Spec, model: ModelSpec) -> float:
    assert spec.seq_len is not None, "an unbound spec"
    return spec.num_sequences * spec.seq_len * model.flops_per_token(spec.seq_len)


def summary(rows: pd.DataFrame) -> list[str]:
    queries = rows["num_queries"].sum()
    return [
        f"  {rows['num_correct'].sum() / queries:.4f} of {queries:,} queries answered (1 is perfect), "
        f"{rows['num_stale'].sum() / queries:.4f} with an earlier value of the key"
    ]
