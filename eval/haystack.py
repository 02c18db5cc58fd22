"""The text in which needles are hidden, and the hiding itself (construction of the LongAlign test, section 6 of the setup)."""

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from data.corpus import Corpus
from data.text_files import TextSource, read_documents
from eval.text import TextCodec

MAX_SKIPS = 8


def folder_text(path: Path, *, in_order: bool = True) -> str:
    """The texts of a folder (or one file) joined; sorted by name, or in the order the directory lists them."""
    if in_order:
        return "".join(TextSource(str(path)).documents())
    texts = []
    for entry in os.scandir(path):
        found = _readable(Path(entry.path))
        if found:
            texts.append("".join(read_documents(found)))
    if not texts:
        raise ValueError(f"{path} holds no text file to hide needles in")
    return "".join(texts)


def _readable(path: Path) -> Path | None:
    try:
        return TextSource(str(path)).files[0] if path.is_file() else None
    except ValueError:
        return None  # a file of another kind


def heldout_texts(corpus: Corpus) -> Iterator[str]:
    """Held-out documents as text, in order."""
    for row in range(len(corpus.heldout)):
        yield corpus.tokenizer.decode(corpus.heldout.read(slice(row, row + 1))[0].tolist())


def haystack_ids(codec: TextCodec, texts: Iterator[str], num_tokens: int) -> list[int]:
    """At least `num_tokens` tokens of the texts, repeated from the beginning if they are shorter."""
    ids: list[int] = []
    for text in texts:
        ids.extend(codec.encode(text))
        if len(ids) >= num_tokens:
            return ids
    if not ids:
        raise ValueError("the haystack has no text")
    return ids * -(-num_tokens // len(ids))


def full_stops(codec: TextCodec) -> frozenset[int]:
    """The token ids that are exactly a full stop, alone and behind a word (some tokenisers tell the two apart)."""
    found = {codec.encode(text)[-1] for text in (".", "end.")}
    return frozenset(i for i in found if codec.decode([i]) == ".")


def insert(hay: Sequence[int], needle: Sequence[int], depth: float, stops: Collection[int]) -> tuple[list[int], int]:
    """Hay with the needle at `depth` percent, moved back behind the closest full stop before it (to the very beginning if
    there is none; depth 100 is the very end), and the position where it went in."""
    if depth >= 100:
        return [*hay, *needle], len(hay)
    point = int(len(hay) * depth / 100)
    while point > 0 and hay[point - 1] not in stops:
        point -= 1
    return [*hay[:point], *needle, *hay[point:]], point


def document(codec: TextCodec, hay: Sequence[int], needle: str, num_tokens: int, depth: float, stops: Collection[int]) -> str:
    """Haystack text with the needle inside that encodes to exactly `num_tokens` tokens.

    The ids are cut to the count, the needle is inserted, and the whole is decoded, because the model reads the
    re-encoded text. Encoding may join or split tokens at the seams; the end of the haystack is moved by as much (the
    needle stays where it is), so that the count holds for what the model reads. `hay` needs some tokens to spare.
    Raises ValueError if the needle alone is longer, or if no cut gives the count (a text that hardly encodes).
    """
    needle_ids = codec.encode(needle)
    room = num_tokens - len(needle_ids)
    if room <= 0:
        raise ValueError(f"a needle of {len(needle_ids)} tokens does not fit into a document of {num_tokens}")
    assert len(hay) >= num_tokens + MAX_SKIPS
    for skip in range(MAX_SKIPS):  # a count that encoding leaps over is met with the haystack's first token left out
        _, point = insert(hay[skip : skip + room], needle_ids, depth, stops)
        point, end = skip + point, skip + room
        tried: set[int] = set()
        while end not in tried and point <= end <= len(hay):
            tried.add(end)
            middle = end if depth >= 100 else point
            text = codec.decode([*hay[skip:middle], *needle_ids, *hay[middle:end]])
            if needle not in text:  # the cut fell into a JSON escape, which then swallowed the needle's first character
                break
            gap = num_tokens - len(codec.encode(text))
            if gap == 0:
                return text
            end += gap
            point = min(point, end) if depth >= 100 else point
    raise ValueError(f"no document of exactly {num_tokens} tokens could be cut from the haystack at depth {depth}")
