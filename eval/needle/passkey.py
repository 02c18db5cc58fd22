"""Pass-key retrieval: key-value lines hidden in filler, one asked for at the end. Small models can learn it.

The construction is the same for training and for testing, on token ids, so that lengths and depths are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.shell.text import TextCodec

NAMES = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "ivory", "jetty", "koala", "larch", "maple",
    "north", "ocean", "pearl", "quilt", "river", "stone", "tulip", "umber", "viola", "wheat", "xenon", "yucca", "zebra",
)  # fmt: skip
DIGITS = 4


@dataclass(frozen=True)
class Passkey:
    """One document: `prompt` ids (BOS first) end where the value is due; `answer` ids are the value; `value` its text."""

    prompt: list[int]
    answer: list[int]
    value: str


def key_line(name: str, value: str) -> str:
    return f"\nThe pass key of {name} is {value}.\n"


def query_line(name: str) -> str:
    return f"\nThe pass key of {name} is"


def _value(rng: np.random.Generator) -> str:
    """Four different digits: with repeated ones, copying what follows the last digit would not be enough."""
    return "".join(str(digit) for digit in rng.permutation(10)[:DIGITS])


def passkey(
    codec: TextCodec, filler: Sequence[int], *, length: int, depth: float, num_keys: int, rng: np.random.Generator
) -> Passkey:
    """A document of exactly `length` tokens, BOS and query included, answer excluded.

    The line that is asked for stands at `depth` percent of the filler, the `num_keys` - 1 others at random places.
    Raises ValueError if the lines do not fit or there are not enough names.
    """
    if num_keys > len(NAMES):
        raise ValueError(f"num_keys {num_keys} exceeds the {len(NAMES)} names of keys")
    names = [NAMES[i] for i in rng.permutation(len(NAMES))[:num_keys]]
    values = [_value(rng) for _ in names]
    lines = [codec.encode(key_line(name, value)) for name, value in zip(names, values, strict=True)]
    query = codec.encode(query_line(names[0]))
    room = length - 1 - len(query) - sum(map(len, lines))
    if room < 0:
        raise ValueError(f"length {length} is too short for {num_keys} key lines and a query: at least {length - room} tokens")
    filler = _take(filler, room, rng)
    places = [round(room * depth / 100), *rng.integers(0, room + 1, num_keys - 1).tolist()]
    body: list[int] = []
    start = 0
    for place, index in sorted(zip(places, range(num_keys), strict=True)):
        body += [*filler[start:place], *lines[index]]
        start = place
    body += filler[start:]
    return Passkey([codec.bos_id, *body, *query], codec.answer(query_line(names[0]), values[0]), values[0])


def _take(filler: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """`count` ids from a random place of the filler, wrapping round."""
    start = int(rng.integers(0, len(filler)))
    ids = list(filler[start : start + count])
    while len(ids) < count:
        ids += filler[: count - len(ids)]
    return ids


def training_batch(
    codec: TextCodec,
    filler: Sequence[int],
    *,
    seq_len: int,
    batch_size: int,
    seed: int,
    step: int,
    num_keys: int = 1,
    max_queries: int = 8,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Documents to learn the task from: a pure function of (seed, step).

    Key lines and up to `max_queries` answered queries stand at random places of the filler, so that distances of
    all sizes occur. Returns inputs and targets (batch_size, seq_len), int64, aligned (BOS is the first input), and a mask
    that is true where the target belongs to an answer. Raises ValueError if key lines and one query do not fit.
    """
    rng = np.random.default_rng([seed, step])
    inputs = np.empty((batch_size, seq_len), np.int64)
    targets = np.empty((batch_size, seq_len), np.int64)
    mask = np.zeros((batch_size, seq_len), bool)
    for row in range(batch_size):
        ids, answers = _training_document(codec, filler, seq_len, num_keys, int(rng.integers(1, max_queries + 1)), rng)
        inputs[row] = [codec.bos_id, *ids[:-1]]
        targets[row] = ids
        for start, stop in answers:
            mask[row, start:stop] = True
    return inputs, targets, mask


def _training_document(
    codec: TextCodec, filler: Sequence[int], length: int, num_keys: int, num_queries: int, rng: np.random.Generator
) -> tuple[list[int], list[tuple[int, int]]]:
    """`length` ids and the spans of the answers among them: key lines first, then queries, filler between all of them."""
    names = [NAMES[i] for i in rng.permutation(len(NAMES))[:num_keys]]
    values = [_value(rng) for _ in names]
    pieces = [codec.encode(key_line(name, value)) for name, value in zip(names, values, strict=True)]
    starts = []
    used = sum(map(len, pieces))
    for n in range(num_queries):
        index = int(rng.integers(0, num_keys))
        query = codec.encode(query_line(names[index]))
        whole = codec.encode(key_line(names[index], values[index]))
        if used + len(whole) > length:
            if n == 0:
                raise ValueError(
                    f"seq_len {length} is too short for {num_keys} key lines and a query: at least {used + len(whole)}"
                )
            break
        pieces.append(whole)
        starts.append(len(query))
        used += len(whole)
    gaps = np.sort(rng.integers(0, length - used + 1, len(pieces)))
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    hay = _take(filler, length - used, rng)
    before = 0
    for number, (gap, piece) in enumerate(zip(gaps.tolist(), pieces, strict=True)):
        ids += hay[before:gap]
        before = gap
        if number >= num_keys:
            begin = len(ids) + starts[number - num_keys]
            spans.append((begin, begin + len(codec.encode(f" {values[0]}"))))
        ids += piece
    return ids + hay[before:], spans
