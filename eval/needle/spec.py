"""Needle in a haystack (Fig. 4), and the grid of lengths and depths that evaluations with needles share."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import pandas as pd
import tyro
from pydantic import Field

from data.corpus import Counts
from eval.needle.wording import DEFAULT_WORDING, Wording, words
from eval.runner.sources import check_choice, digest, fingerprint
from eval.runner.spec import Content, EvalSpec, Once, Precision, PrecisionOption, Setting
from models.spec_parts import NonNegativeInt, PositiveInt, strict
from results.schema import Schema, integer, number, text
from training.spec import RunSpec

Depth = Annotated[float, Field(ge=0, le=100, strict=False)]
LEAST_HAYSTACK = 64
"""Least number of haystack tokens around the needle: with fewer, a cell is not a test of retrieval."""


class HaystackSpec(EvalSpec):
    """Base of specs that read a haystack: `text` is held-out text (of a corpus), or the digest of a folder."""

    text: str | None
    precision: Precision | None

    def reads(self) -> tuple[str, ...]:
        return ("corpus",) if str(self.text).startswith("heldout") else ("haystack",)

    def bound(self, setting: Setting) -> Self:
        text, folder = self.text, setting.sources.haystack
        check_choice("--text", str(text), "heldout")
        if text == "heldout":
            text = f"heldout:{fingerprint(setting.corpus)}" if folder is None else digest(folder)
        return replace(super().bound(setting), text=text)  # type: ignore[type-var]


def at_places(columns: dict[str, Any]) -> Schema:
    """Return the schema of one row per needle: its place in the grid, and the measured `columns`."""
    place = {"mode": text(("easy", "standard")), "length": integer(1), "depth": number(0, 100), "sample": integer(0)}
    return Schema({**place, **columns}, key=tuple(place))


@strict
class Grid(HaystackSpec):
    """Fields that evaluations with needles share."""

    mode: Literal["easy", "standard"] = "standard"
    """standard hides one sentence; easy hides question, answer marker and sentence."""
    lengths: Annotated[tuple[PositiveInt, ...], Once] = tuple(range(1000, 32001, 3100))
    """Tokens of the prompts."""
    depths: Annotated[tuple[Depth, ...], Once] = tuple(float(depth) for depth in range(0, 101, 10))
    """Places of the needle, in percent of the text."""
    samples_per_cell: PositiveInt = 1
    reserve: NonNegativeInt = 200
    """Tokens of each length kept free for BOS and the query."""
    text: Content = "heldout"
    """Held-out text (of a corpus, whose fingerprint `bound` adds), or the digest of the folder given with --haystack."""
    wording: Content = None
    """Digest of the file of the sentences."""
    precision: PrecisionOption = None

    SENTENCES: ClassVar[Path] = DEFAULT_WORDING
    """File of the hidden sentences."""

    def __post_init__(self) -> None:
        if min(self.lengths) <= self.reserve:
            raise ValueError(f"length {min(self.lengths)} leaves nothing after the {self.reserve} reserved tokens: lengthen it")

    def bound(self, setting: Setting) -> Self:
        return replace(super().bound(setting), wording=digest(self.SENTENCES))

    def check_sentences(self) -> None:
        """Raise ValueError if this version's sentences are not the spec's."""
        if (found := digest(self.SENTENCES)) != self.wording:
            raise ValueError(f"the evaluation asks for sentences {self.wording}; this version has {found}: plan it again")

    def tokens_read(self) -> list[tuple[int, int]]:
        return [(self.samples_per_cell * len(self.depths) * length, length) for length in self.lengths]

    def check_cells(self, wordings: Sequence[Wording], tokenizer: str) -> None:
        """Raise ValueError if a query may not fit into the reserve, or the shortest cell may have fewer than LEAST_HAYSTACK
        tokens of haystack. Tokens are bounded from above, without a tokeniser: these texts have at least 3 bytes per token,
        1.5 with a vocabulary of a few thousand (1.52 measured with 512)."""
        small = tokenizer.startswith("bpe-") and int(tokenizer.removeprefix("bpe-")) < 8192
        per_token = 1.0 if tokenizer == "bytes" else 1.5 if small else 3.0

        def most(texts: Iterable[str]) -> int:
            return int(max(len(text.encode()) for text in texts) / per_token) + 1

        query, needle = most(each.query for each in wordings), most(each.hidden(self.mode) for each in wordings)
        if query + 1 > self.reserve:
            what = f"the query and BOS have up to {query + 1} tokens ({tokenizer}), more than the {self.reserve} reserved"
            remedy = "raise the reserve (--reserve, or `needle` of a scale in experiments/scales.py)"
            raise ValueError(f"{what}: prompts would be longer than their cell; {remedy}")
        haystack = min(self.lengths) - self.reserve - needle
        if haystack < LEAST_HAYSTACK:
            what = f"length {min(self.lengths)} may leave as few as {max(haystack, 0)} tokens of haystack"
            where = f"mode {self.mode!r} with {tokenizer} and a reserve of {self.reserve}"
            raise ValueError(f"{what}; the shortest for {where} is {self.reserve + needle + LEAST_HAYSTACK}")


@strict
class Spec(Grid):
    """Needle in a haystack: a sentence hidden in a long text and asked for at its end, over lengths and depths (Fig. 4)."""

    kind: Literal["needle"] = "needle"
    max_new_tokens: PositiveInt = 1024
    """Limit on the tokens of an answer, which is generated greedily."""
    num_keys: Annotated[Literal[1], tyro.conf.Suppress] = 1
    """Named by stored specs."""
    judge: str | None = None
    """Model name of an LLM judge; None scores by exact and fuzzy match."""

    SCHEMA = at_places(
        {
            "score": number(1, 10),
            "exact": number(0, 1),
            "fuzzy": number(0, 1),
            "scored_by": text(),  # "match", or the judge's name
            "prediction": text(empty=True),
        }
    )

    def reads(self) -> tuple[str, ...]:
        return (*super().reads(), "prompts", *(() if self.judge is None else ("judge_url",)))

    def bound(self, setting: Setting) -> Self:
        wording = setting.sources.prompts or DEFAULT_WORDING
        texts = Wording.read(wording)
        if self.judge is not None and not texts.judge:
            raise ValueError(f"{wording}: judge is empty: give the text that asks {self.judge!r} for a score")
        if self.judge is None and not words(texts.expected):
            what = "what needle says after answer_start has no letter from a to z and no digit, by which answers are matched"
            raise ValueError(f"{wording}: {what}: name a --judge-model")
        if self.judge is not None and setting.sources.judge_url is None:
            raise ValueError(f"judge {self.judge!r} needs the address of its endpoint: --judge-url")
        return replace(super().bound(setting), wording=digest(wording))

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        if self.wording in (None, digest(DEFAULT_WORDING)):
            self.check_cells([Wording.read(DEFAULT_WORDING)], run.data.tokenizer)

    def tokens_read(self) -> list[tuple[int, int]]:
        cells = len(self.depths) * self.samples_per_cell
        return [(cells * (length + self.max_new_tokens), length) for length in self.lengths]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        ends = {1.0: ", the floor", 10.0: ", the ceiling"}
        means = rows.groupby("length")["score"].mean()
        return [f"  length {length}: mean score {score:.2f} (1 to 10){ends.get(score, '')}" for length, score in means.items()]
