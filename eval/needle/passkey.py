"""Pass-key retrieval: key-value lines hidden in filler, one asked for at the end. Small models can learn it.

Built on token ids, so that lengths and depths are exact.
"""

from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np

from eval.shell.text import TextCodec

NAMES = (
    "amber birch cedar delta ember fjord grove heath ivory jetty koala larch maple "
    "north ocean pearl quilt river stone tulip umber viola wheat xenon yucca zebra"
).split()
DIGITS = 4


def key_line(name: str, value: str) -> str:
    return f"{query_line(name)} {value}.\n"


def query_line(name: str) -> str:
    return f"\nThe pass key of {name} is"


def draw_keys(num_keys: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Draw different names, each with a value of four different digits. ValueError if there are not enough names.

    With repeated digits, copying what follows the last one would not be enough.
    """
    if num_keys > len(NAMES):
        raise ValueError(f"num_keys {num_keys} exceeds the {len(NAMES)} names of keys: ask for fewer")
    names = [NAMES[i] for i in rng.permutation(len(NAMES))[:num_keys]]
    return [(name, "".join(map(str, rng.permutation(10)[:DIGITS]))) for name in names]


def passkey(
    codec: TextCodec, filler: Sequence[int], *, length: int, depth: float, num_keys: int, rng: np.random.Generator
) -> tuple[list[int], str]:
    """Make a document of exactly `length` token ids, BOS and query included, and the value that is due behind it.

    The line that is asked for stands at `depth` percent of the filler, the `num_keys` - 1 others at random places.
    ValueError if the lines do not fit or there are not enough names.
    """
    keys = draw_keys(num_keys, rng)
    lines = [codec.encode(key_line(name, value)) for name, value in keys]
    asked, expected = keys[0]
    query = codec.encode(query_line(asked))
    room = length - 1 - len(query) - sum(map(len, lines))
    if room < 0:
        raise ValueError(f"length {length} is too short for {num_keys} key lines and a query: at least {length - room} tokens")
    filler = take(filler, room, rng)
    places = [round(room * depth / 100), *rng.integers(0, room + 1, num_keys - 1).tolist()]
    body, start = [codec.bos_id], 0
    for place, index in sorted(zip(places, range(num_keys), strict=True)):
        body += [*filler[start:place], *lines[index]]
        start = place
    return [*body, *filler[start:], *query], expected


def take(filler: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """Take `count` ids from a random place of the filler, wrapping round."""
    start = int(rng.integers(0, len(filler)))
    return list(islice(cycle(filler), start, start + count))
