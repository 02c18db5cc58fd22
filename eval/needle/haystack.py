"""Haystacks, the needles hidden in them (as in the LongAlign test, section 6 of the setup), and the prompts of a grid."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from data.text_files import TextSource, read_documents
from eval.needle.spec import LEAST_HAYSTACK, Grid
from eval.needle.wording import Wording
from eval.runner.context import Context
from eval.runner.sources import checked
from eval.runner.text import TextCodec, heldout_texts

SPARE = 64  # tokens of haystack beyond a cell's length, needed to reach an exact count
MAX_SKIPS = 8
TOLERANCE = 8  # tokens by which a document may be shorter if the tokeniser does not reproduce its text


def haystack_texts(name: str | None, context: Context) -> Iterator[str]:
    """Return the texts of the haystack that a bound spec names. ValueError if the given one differs."""
    assert name is not None, "an unbound spec"
    if name.startswith("heldout:"):
        return heldout_texts(context.heldout(name.removeprefix("heldout:")))
    folder = checked("text", name, context.sources.haystack, "--haystack")
    texts = (text for file in TextSource(str(folder)).files for text in read_documents(file))
    return iter(["".join(texts)])


def haystack_ids(codec: TextCodec, texts: Iterator[str], num_tokens: int) -> list[int]:
    """Return at least `num_tokens` tokens of the texts, repeated from the beginning if they are shorter."""
    ids: list[int] = []
    for text in texts:
        ids.extend(codec.encode(text))
        if len(ids) >= num_tokens:
            return ids
    if not ids:
        raise ValueError("the haystack has no text: name another one with --haystack, or a corpus")
    return ids * -(-num_tokens // len(ids))


def full_stops(codec: TextCodec) -> frozenset[int]:
    """Return the token ids of a full stop, alone and after a word (some tokenisers distinguish the two)."""
    found = {ids[-1] for ids in map(codec.encode, (".", "end.")) if ids}
    stops = frozenset(i for i in found if codec.decode([i]).strip() == ".")
    if not stops:
        raise ValueError("the model's tokeniser has no token for a full stop, so that no needle can be put after a sentence")
    return stops


def insertion_point(hay: Sequence[int], depth: float, stops: Collection[int]) -> int:
    """Return the index at which a needle at `depth` percent is inserted: after the closest full stop before that depth, or at
    the beginning if there is none; depth 100 is the end."""
    if depth >= 100:
        return len(hay)
    point = int(len(hay) * depth / 100)
    while point > 0 and hay[point - 1] not in stops:
        point -= 1
    return point


def document(codec: TextCodec, hay: Sequence[int], needle: str, num_tokens: int, depth: float, stops: Collection[int]) -> str:
    """Return haystack text with the needle inside that encodes to exactly `num_tokens` tokens.

    The haystack before the needle, the needle and the haystack after it are joined as text and encoded again. If that merges
    or splits tokens, the end of the haystack is moved (`hay` needs spare tokens) while the needle stays. With a tokeniser that
    does not reproduce its text (e.g. one that lower-cases) up to TOLERANCE tokens may be missing. ValueError if the needle
    alone is longer, or no cut gives the count."""
    room = num_tokens - len(codec.encode(needle))
    if room <= 0:
        raise ValueError(f"a needle of {num_tokens - room} tokens does not fit into a document of {num_tokens}")
    assert len(hay) >= num_tokens + MAX_SKIPS
    closest, smallest = "", TOLERANCE + 1
    for skip in range(MAX_SKIPS):  # some counts are only reached without the haystack's first tokens
        point, end = skip + insertion_point(hay[skip : skip + room], depth, stops), skip + room
        tried: set[int] = set()
        while end not in tried and point <= end <= len(hay):
            tried.add(end)
            middle = end if depth >= 100 else point
            text = codec.decode(list(hay[skip:middle])) + needle + codec.decode(list(hay[middle:end]))
            gap = num_tokens - len(codec.encode(text))
            if gap == 0:
                return text
            if 0 < gap < smallest:
                closest, smallest = text, gap
            end += gap
            point = min(point, end) if depth >= 100 else point
    if not closest:
        raise ValueError(f"no document of {num_tokens} tokens could be cut at depth {depth}: name another haystack")
    return closest


@dataclass(frozen=True)
class Cell:
    """Prompt (ids with BOS) at one place of the grid, and the text that should follow it."""

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
        """Key columns of the cell's row."""
        return {"mode": self.mode, "length": self.length, "depth": self.depth, "sample": self.sample}


class CellBuilder:
    """Maker of prompts from one haystack. Sample 0 is the paper's cell; further samples start later in the haystack.

    All methods raise ValueError for a length into which a needle or a query does not fit."""

    def __init__(self, codec: TextCodec, spec: Grid, context: Context):
        self.codec, self.spec = codec, spec
        self._pitch = max(spec.lengths) + SPARE
        self.ids = haystack_ids(codec, haystack_texts(spec.text, context), self._pitch * spec.samples_per_cell)
        self._stops = full_stops(codec)

    def places(self) -> Iterator[tuple[int, float, int]]:
        """Yield the length, depth and number of every sample."""
        return product(self.spec.lengths, self.spec.depths, range(self.spec.samples_per_cell))

    def cells(self, wordings: Sequence[Wording]) -> Iterator[Cell]:
        """Make all cells of the grid; sample s hides needle s modulo the number of needles."""
        for length, depth, sample in self.places():
            wording = wordings[sample % len(wordings)]
            prompt = self._prompt(wording, wording.hidden(self.spec.mode), length, depth, sample)
            yield Cell(self.spec.mode, length, depth, sample, prompt, wording.expected)

    def cells_of_ids(self, wordings: Sequence[Wording]) -> Iterator[Cell]:
        """Make all cells by concatenating the ids of haystack, needle and query. No text is encoded again, which would take
        most of the time with many needles; at the joints the ids may differ from those of the whole text. Place n of the grid
        hides needle n modulo the number of needles."""
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
        """Return the prompt of a cell without its needle: the same haystack to the same length, and the query."""
        return self._prompt(wording, "", length, 100.0, sample)

    def _prompt(self, wording: Wording, hidden: str, length: int, depth: float, sample: int) -> list[int]:
        self._haystack(length, len(self.codec.encode(hidden)))
        hay = self.ids[sample * self._pitch :][: length + SPARE]
        text = document(self.codec, hay, hidden, length - self.spec.reserve, depth, self._stops)
        return self._checked([self.codec.bos_id, *self.codec.encode(text + wording.query)], length)

    def _haystack(self, length: int, needle: int) -> int:
        """Return the number of haystack tokens around a needle of `needle` tokens. ValueError if they are too few."""
        haystack = length - self.spec.reserve - needle
        if haystack < LEAST_HAYSTACK:
            what = f"length {length} with a reserve of {self.spec.reserve} leaves {max(haystack, 0)} tokens of haystack"
            least = length + LEAST_HAYSTACK - haystack
            raise ValueError(f"{what} around the needle; with this tokeniser the length must be at least {least}")
        return haystack

    def _checked(self, prompt: list[int], length: int) -> list[int]:
        if len(prompt) > length:
            need = f"need a reserve of {self.spec.reserve + len(prompt) - length}, not {self.spec.reserve}"
            raise ValueError(f"the prompt of length {length} has {len(prompt)} tokens: BOS and the query {need}")
        return prompt
