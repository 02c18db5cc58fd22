"""Prompts of a grid of lengths and depths."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from eval.needle.haystack import SPARE, document, full_stops, haystack_ids, haystack_texts, insertion_point
from eval.needle.spec import LEAST_HAYSTACK, Grid
from eval.needle.wording import Wording
from eval.shell.context import Context
from eval.shell.text import TextCodec


@dataclass(frozen=True)
class Cell:
    """Prompt (ids with BOS) of one place of the grid, and the text that should follow."""

    mode: str
    length: int
    depth: float
    sample: int
    prompt: list[int]
    expected: str

    @property
    def key(self) -> str:
        return f"{self.length}/{self.depth}/{self.sample}"

    @property
    def place(self) -> dict[str, Any]:
        """Columns that say which of the grid's rows this is."""
        return {"mode": self.mode, "length": self.length, "depth": self.depth, "sample": self.sample}


class CellBuilder:
    """Maker of prompts from one haystack. Sample 0 is the paper's cell; further samples start further on in the haystack.

    ValueError, from all of its methods, for a length that a needle or a query does not fit into.
    """

    def __init__(self, codec: TextCodec, spec: Grid, context: Context):
        self.codec, self.spec = codec, spec
        self._pitch = max(spec.lengths) + SPARE
        self.ids = haystack_ids(codec, haystack_texts(spec.text, context), self._pitch * spec.samples_per_cell)
        self._stops = full_stops(codec)

    def places(self) -> Iterator[tuple[int, float, int]]:
        """Length, depth and number of every sample."""
        return product(self.spec.lengths, self.spec.depths, range(self.spec.samples_per_cell))

    def cells(self, wordings: Sequence[Wording]) -> Iterator[Cell]:
        """Make all of the grid; sample s hides the needle s modulo their number."""
        for length, depth, sample in self.places():
            wording = wordings[sample % len(wordings)]
            prompt = self._prompt(wording, wording.hidden(self.spec.mode), length, depth, sample)
            yield Cell(self.spec.mode, length, depth, sample, prompt, wording.expected)

    def cells_of_ids(self, wordings: Sequence[Wording]) -> Iterator[Cell]:
        """Make all of the grid of the ids of haystack, needle and query: no text is encoded again, which takes most of the time
        of many needles, and at the seams the ids may be others than those of the whole text. Place n of the grid hides needle n
        modulo their number."""
        encode, mode = self.codec.encode, self.spec.mode
        encoded = [(encode(each.hidden(mode)), encode(each.query), each.expected) for each in wordings]
        for place, (length, depth, sample) in enumerate(self.places()):
            hidden, query, expected = encoded[place % len(encoded)]
            start = sample * self._pitch
            hay = self.ids[start : start + self._haystack(length, len(hidden))]
            point = insertion_point(hay, depth, self._stops)
            prompt = [self.codec.bos_id, *hay[:point], *hidden, *hay[point:], *query]
            yield Cell(mode, length, depth, sample, self._checked(prompt, length), expected)

    def without_needle(self, wording: Wording, length: int, sample: int) -> list[int]:
        """Return the prompt of a cell whose needle is left out: as much of the same text, and the query."""
        return self._prompt(wording, "", length, 100.0, sample)

    def _prompt(self, wording: Wording, hidden: str, length: int, depth: float, sample: int) -> list[int]:
        self._haystack(length, len(self.codec.encode(hidden)))
        hay = self.ids[sample * self._pitch :][: length + SPARE]
        text = document(self.codec, hay, hidden, length - self.spec.reserve, depth, self._stops)
        return self._checked([self.codec.bos_id, *self.codec.encode(text + wording.query)], length)

    def _haystack(self, length: int, needle: int) -> int:
        """Return the tokens of haystack round a needle of so many. ValueError where they are too few."""
        haystack = length - self.spec.reserve - needle
        if haystack < LEAST_HAYSTACK:
            raise ValueError(
                f"length {length} with a reserve of {self.spec.reserve} leaves {max(haystack, 0)} tokens of haystack around "
                f"the needle; with this tokeniser the length must be at least {length + LEAST_HAYSTACK - haystack}"
            )
        return haystack

    def _checked(self, prompt: list[int], length: int) -> list[int]:
        if len(prompt) > length:
            raise ValueError(
                f"the prompt of length {length} has {len(prompt)} tokens: BOS and the query need a reserve of "
                f"{self.spec.reserve + len(prompt) - length}, not {self.spec.reserve}"
            )
        return prompt
