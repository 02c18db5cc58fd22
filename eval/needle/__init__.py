"""Needle in a haystack: a sentence in a long text, asked for at the end, over a grid of lengths and depths (Fig. 4)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import pandas as pd
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from data.spec import DataSpec
from eval.needle.wording import DEFAULT_WORDING, Wording
from eval.shell.kind import Content, Needs, NonNegativeInt, Precision
from eval.shell.sources import Sources, digest, fingerprint
from models.spec import STRICT, ModelSpec, PositiveInt
from results.schema import Schema, integer, number, text
from training.spec import RunSpec

Depth = Annotated[float, Field(ge=0, le=100, strict=False)]
LEAST_HAYSTACK = 64
"""Tokens of text around the needle that make a cell a test of retrieval at all."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Grid:
    """What evaluations with needles share."""

    mode: Literal["easy", "standard", "passkey"] = "standard"
    """Standard hides one sentence; easy hides question, answer marker and sentence; passkey hides key-value lines in a form of
    its own, which small models can learn."""
    lengths: tuple[PositiveInt, ...] = tuple(range(1000, 32001, 3100))
    """Tokens of the prompts."""
    depths: tuple[Depth, ...] = tuple(float(depth) for depth in range(0, 101, 10))
    """Percent of the text before the needle."""
    samples_per_cell: PositiveInt = 1
    reserve: NonNegativeInt = 200
    """Tokens of each length kept free for BOS and the query (passkey counts its query exactly and ignores it)."""
    text: Content = "heldout"
    """Held-out text (of a corpus, whose fingerprint `bound` adds), or the digest of the folder given with --haystack."""
    wording: Content = None
    """Digest of the file of the sentences."""
    precision: Precision | None = None

    @model_validator(mode="after")
    def _check_grid(self) -> "Grid":
        if not self.lengths or not self.depths:
            raise ValueError("a needle grid needs at least one length and one depth")
        if self.mode != "passkey" and min(self.lengths) <= self.reserve:
            raise ValueError(
                f"length {min(self.lengths)} leaves nothing after the {self.reserve} reserved tokens; "
                "choose longer lengths or a smaller reserve"
            )
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec(Grid):
    """Needle in a haystack over a grid of lengths and depths, greedy generation (Fig. 4)."""

    kind: Literal["needle"] = "needle"
    max_new_tokens: PositiveInt = 1024
    num_keys: PositiveInt = 1
    """Lines that passkey hides."""
    judge: str | None = None
    """Model name of an LLM judge; None scores by exact and fuzzy match."""

    @model_validator(mode="after")
    def _check(self) -> "Spec":
        if self.num_keys > 1 and self.mode != "passkey":
            raise ValueError(f"num_keys {self.num_keys} applies to mode 'passkey' only, not to {self.mode!r}")
        if self.judge is not None and self.mode == "passkey":
            raise ValueError("mode 'passkey' is scored by match; leave the judge out")
        return self


SCHEMA = Schema(
    {
        "mode": text(("easy", "standard", "passkey")),
        "length": integer(1),
        "depth": number(0, 100),
        "sample": integer(0),
        "score": number(1, 10),
        "exact": number(0, 1),
        "fuzzy": number(0, 1),
        "scored_by": text(),  # "match", or the judge's name
        "prediction": text(empty=True),
    },
    key=("mode", "length", "depth", "sample"),
)
NEEDS: Needs = "weights"


def reads(spec: Spec) -> tuple[str, ...]:
    judge = () if spec.judge is None else ("judge_url",)
    return (*reads_text(spec), *(() if spec.mode == "passkey" else ("prompts",)), *judge)


def reads_text(spec: Grid) -> tuple[str, ...]:
    return ("corpus",) if str(spec.text).startswith("heldout") else ("haystack", "haystack_unsorted")


def bound(spec: Spec, corpus: DataSpec | None, sources: Sources, precision: Precision, machine: str) -> Spec:
    wording = sources.prompts or DEFAULT_WORDING
    Wording.read(wording)
    return replace(
        spec,
        text=text_of(spec, corpus, sources),
        wording="passkey" if spec.mode == "passkey" else digest(wording),
        precision=spec.precision or precision,
    )


def text_of(spec: Grid, corpus: DataSpec | None, sources: Sources) -> str:
    """What a bound spec calls the haystack."""
    if spec.text != "heldout":
        assert spec.text is not None
        return spec.text
    if sources.haystack is None:
        return f"heldout:{fingerprint(corpus)}"
    return digest(sources.haystack) + ("-unsorted" if sources.haystack_unsorted else "")


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    if spec.mode != "passkey" and spec.wording in (None, digest(DEFAULT_WORDING)):
        check_cells(spec, [Wording.read(DEFAULT_WORDING)], run.data.tokenizer)


def check_cells(spec: Grid, wordings: Sequence[Wording], tokenizer: str) -> None:
    """ValueError if a query may not fit into the reserve, or the shortest cell may have no haystack worth the name.

    Tokens are estimated from above, so that no tokeniser is needed: these texts have at least 3 bytes a token, 1.5 with a
    vocabulary of a few thousand tokens (1.52 measured with 512).
    """
    small = tokenizer.startswith("bpe-") and int(tokenizer.removeprefix("bpe-")) < 8192
    per_token = 1.0 if tokenizer == "bytes" else 1.5 if small else 3.0
    query, needle = (int(max(len(words.encode()) for words in found) / per_token) + 1 for found in (
        [wording.query for wording in wordings], [wording.hidden(spec.mode) for wording in wordings]
    ))  # fmt: skip
    if query + 1 > spec.reserve:
        raise ValueError(
            f"the query and BOS have up to {query + 1} tokens ({tokenizer}), more than the {spec.reserve} reserved: prompts "
            "would be longer than their cell; raise the reserve"
        )
    haystack = min(spec.lengths) - spec.reserve - needle
    if haystack < LEAST_HAYSTACK:
        raise ValueError(
            f"length {min(spec.lengths)} may leave as few as {max(haystack, 0)} tokens of haystack; the shortest for mode "
            f"{spec.mode!r} with {tokenizer} and a reserve of {spec.reserve} is {spec.reserve + needle + LEAST_HAYSTACK}"
        )


def flops(spec: Spec, model: ModelSpec) -> float:
    cells = len(spec.depths) * spec.samples_per_cell
    new = min(spec.max_new_tokens, 12) if spec.mode == "passkey" else spec.max_new_tokens
    return sum(cells * (length + new) * model.flops_per_token(length) for length in spec.lengths)


def summary(rows: pd.DataFrame) -> list[str]:
    lines = []
    for length, score in rows.groupby("length")["score"].mean().items():
        place = ", the floor" if score == 1 else ", the ceiling" if score == 10 else ""
        lines.append(f"  length {length}: mean score {score:.2f} of 1 to 10{place}")
    return lines
