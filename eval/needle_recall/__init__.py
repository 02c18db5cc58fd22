"""Needle recall in nats: how much likelier a hidden sentence makes the answer that it holds; no score that has a floor.

Each sample hides another of the sentences in eval/needle/facts.toml at another place of the haystack. `recall_nats` is
log p(answer | text with the needle, question) - log p(answer | the same text without it, question), summed over the answer's
tokens: 0 is no recall, -log p without the needle is perfect recall.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from eval.needle import PAPER_DEPTHS, PAPER_LENGTHS, Depth, check_cells, check_grid, reads_text, text_of
from eval.needle.wording import FACTS, read_facts
from eval.shell.cost import forward_flops
from eval.shell.kind import Content, Needs, NonNegativeInt, Precision
from eval.shell.sources import Sources, digest
from models.spec import STRICT, ModelSpec, PositiveInt
from results.schema import Schema, integer, number, text

if TYPE_CHECKING:
    import pandas as pd

    from data.corpus import Counts
    from data.spec import DataSpec
    from training.spec import RunSpec


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """Log-probability that a needle gives its answer, over a grid of lengths (tokens) and depths (percent).

    `mode`, `reserve`, `text`: as for needle. `samples_per_cell`: needles per cell; beyond the 20 sentences they come again, at
    other places. `wording`: digest of the sentences.
    """

    kind: Literal["needle_recall"] = "needle_recall"
    mode: Literal["easy", "standard"] = "standard"
    lengths: tuple[PositiveInt, ...] = PAPER_LENGTHS
    depths: tuple[Depth, ...] = PAPER_DEPTHS
    samples_per_cell: PositiveInt = 20
    reserve: NonNegativeInt = 200
    text: Content = "heldout"
    wording: Content = None
    precision: Precision | None = None

    @model_validator(mode="after")
    def _check(self) -> "Spec":
        check_grid(self)
        return self


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


def bound(spec: Spec, corpus: "DataSpec | None", sources: Sources, precision: Precision, machine: str) -> Spec:
    precision = spec.precision or precision
    return replace(spec, text=text_of(spec, corpus, sources), wording=digest(FACTS), precision=precision)


def check(spec: Spec, run: "RunSpec", counts: "Counts | None") -> None:
    check_cells(spec, read_facts(), run.data.tokenizer)


def flops(spec: Spec, model: ModelSpec) -> float:
    prompts = spec.samples_per_cell * (len(spec.depths) + 1)
    return sum(forward_flops(model, prompts * length, length) for length in spec.lengths)


def summary(rows: "pd.DataFrame") -> list[str]:
    table = rows.groupby("length")[["recall_nats", "logp_without"]].mean()
    return [
        f"  length {length}: mean recall {row['recall_nats']:.2f} nats of 0 (none) to {-row['logp_without']:.2f} (perfect)"
        for length, row in table.iterrows()
    ]
