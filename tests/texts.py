"""Made-up text for tests, by formula: the same on every interpreter and machine."""

import random
from pathlib import Path

WORDS = (
    "the of and a to in is was he for it with as his on be at by had not are but from or have an they which one you were all "
    "her she there would their we him been has when who will no more if out so up said what its about than into them can only "
    "river stone window letter garden winter harbour candle mountain silver morning shadow voice paper summer bridge village"
).split()


def sentences(seed: int, count: int) -> str:
    """`count` sentences of words drawn with a preference for the first ones, as in real text."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        words = [WORDS[min(int(rng.expovariate(0.06)), len(WORDS) - 1)] for _ in range(rng.randint(4, 14))]
        lines.append(" ".join(words).capitalize() + ".")
    return " ".join(lines)


def write_texts(folder: Path, documents: int = 24, sentences_each: int = 400) -> Path:
    """`documents` files of some 20 kB each in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        (folder / f"text-{number:02d}.txt").write_text(sentences(number, sentences_each))
    return folder
