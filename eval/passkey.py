"""Pass-key retrieval: key-value lines hidden in filler, one asked for at the end. Small models can learn it.

The construction is the same for training and for testing, on token ids, so that lengths and depths are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.text import TextCodec

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
    values = ["".join(str(d) for d in rng.integers(0, 10, DIGITS)) for _ in names]
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
    whole = codec.encode(f"{query_line(names[0])} {values[0]}")
    same = whole[: len(query)] == query
    answer = whole[len(query) :] if same else codec.encode(f" {values[0]}")
    return Passkey([codec.bos_id, *body, *query], answer, values[0])


def _take(filler: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """`count` ids from a random place of the filler, wrapping round."""
    start = int(rng.integers(0, len(filler)))
    ids = list(filler[start : start + count])
    while len(ids) < count:
        ids += filler[: count - len(ids)]
    return ids


def training_batch(
    codec: TextCodec, filler: Sequence[int], *, seq_len: int, batch_size: int, seed: int, step: int, num_keys: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Documents to learn the task from: a pure function of (seed, step).

    Returns inputs and targets (batch_size, seq_len), int64, targets aligned with inputs (BOS first, no further shift), and
    a mask that is true where the target belongs to the answer. Lengths vary from what the lines need up to
    seq_len; shorter documents are filled up on the right (mask false).
    """
    rng = np.random.default_rng([seed, step])
    inputs = np.full((batch_size, seq_len), codec.bos_id, np.int64)
    targets = np.full((batch_size, seq_len), codec.bos_id, np.int64)
    mask = np.zeros((batch_size, seq_len), bool)
    for row in range(batch_size):
        item = passkey(codec, filler, length=seq_len - 6, depth=float(rng.uniform(0, 100)), num_keys=num_keys, rng=rng)
        ids = [*item.prompt, *item.answer][: seq_len + 1]
        inputs[row, : len(ids) - 1] = ids[:-1]
        targets[row, : len(ids) - 1] = ids[1:]
        mask[row, len(item.prompt) - 1 : len(ids) - 1] = True
    return inputs, targets, mask
