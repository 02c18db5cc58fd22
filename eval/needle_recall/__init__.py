"""Needle recall in nats: how much likelier a hidden sentence makes the answer that it holds; no score that has a floor.

Each sample hides another of the sentences in eval/needle/facts.toml at another place of the haystack. `recall_nats` is
log p(answer | text with the needle, question) - log p(answer | the same text without it, question), summed over the answer's
tokens: 0 is no recall, -log p without the needle is perfect recall.
"""

from dataclasses import replace
from typing import Literal

import pandas as pd
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from data.spec import DataSpec
from eval.needle import Grid, check_cells, reads_text, text_of
from eval.needle.wording import FACTS, read_facts
from eval.shell.kind import Needs, Precision
from eval.shell.sources import Sources, digest
from models.spec import STRICT, ModelSpec, PositiveInt
from results.schema import Schema, integer, number, text
from training.spec import RunSpec


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec(Grid):
    """Log-probability that a needle gives its answer, over a grid of lengths and depths."""

    kind: Literal["needle_recall"] = "needle_recall"
    mode: Literal["easy", "standard"] = "standard"
    samples_per_cell: PositiveInt = 20
    """Needles per cell; beyond the 20 sentences they come again, at other places."""


SCHEMA = Schema(
    {
        "mode": text(("easy", "standard")),
        "length": integer(1),
        "depth": number(0, 100),
        "sample": integer(0),
        "logp_with": number(high=0),  # nats, of the whole answer
        "logp_without": number(high=0),  # the same for all depths
        "num_tokens": integer(1),  # of the answer
        "recall_nats": number(),
    },
    key=("mode", "length", "depth", "sample"),
)
NEEDS: Needs = "weights"


def reads(spec: Spec) -> tuple[str, ...]:
    return reads_text(spec)


def bound(spec: Spec, corpus: DataSpec | None, sources: Sources, precision: Precision, machine: str) -> Spec:
    precision = spec.precision or precision
    return replace(spec, text=text_of(spec, corpus, sources), wording=digest(FACTS), precision=precision)


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    check_cells(spec, read_facts(), run.data.tokenizer)


def flops(spec: Spec, model: ModelSpec) -> float:
    prompts = spec.samples_per_cell * (len(spec.depths) + 1)
    return sum(prompts * length * model.flops_per_token(length) for length in spec.lengths)


def summary(rows: pd.DataFrame) -> list[str]:
    table = rows.groupby("length")[["recall_nats", "logp_without"]].mean()
    return [
        f"  length {length}: mean recall {row['recall_nats']:.2f} nats of 0 (none) to {-row['logp_without']:.2f} (perfect)"
        for length, row in table.iterrows()
    ]
