"""Last words: the passages, and the log-probabilities of their last words."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import pandas as pd
import torch

from beyond.eval.last_words.spec import Spec
from eval.runner.batching import Row, recorded_ends, score
from eval.runner.context import Context
from eval.runner.loading import Loaded
from eval.runner.text import TextCodec, heldout_texts

LETTERS = 4
WORD = re.compile("[A-Za-z]+")


@dataclass(frozen=True)
class Item:
    """Word to predict, the passage before it, and the passage's last words (`near`); both end before the space."""

    document: int
    word: str
    passage: str
    near: str


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per passage. `context.extras` gets sources (index of each document's source text, if the corpus stores it).
    ValueError for held-out text without such words, and for too few documents."""
    corpus = context.heldout(spec.corpus)
    spec.check_extent(*corpus.heldout.shape)
    asked = items(list(islice(heldout_texts(corpus), spec.num_documents)), spec)
    rows: dict[str, Row] = {}
    for number, item in enumerate(asked):
        rows[f"{number}/passage"] = _row(loaded.tokenizer, item.passage, item.word)
        rows[f"{number}/near"] = _row(loaded.tokenizer, item.near, item.word)

    def read(key: str, logits_KV: torch.Tensor) -> dict[str, float]:
        logp, greedy = score(rows[key], logits_KV)
        return {"logp": logp, "right": 100.0 * greedy}

    found = recorded_ends("last words", rows, loaded, context, spec.precision, read)
    if corpus.heldout_sources is not None:
        context.extras["sources"] = corpus.heldout_sources[: spec.num_documents]
    return pd.DataFrame(
        {"item": number, "document": item.document}
        | found[f"{number}/passage"]
        | {f"{name}_near": value for name, value in found[f"{number}/near"].items()}
        | {"num_tokens": rows[f"{number}/passage"][1]}
        for number, item in enumerate(asked)
    )


def items(texts: Sequence[str], spec: Spec) -> list[Item]:
    """Return evenly spaced ones of all words that the rule allows (spec.py), in order. ValueError if there are
    none."""
    counts = Counter(word.lower() for text in texts for word in WORD.findall(text))
    common = {word for word, _ in counts.most_common(spec.common)}
    found = [item for document, text in enumerate(texts) for item in _candidates(document, text, common, spec)]
    if not found:
        what = f"no word in {len(texts)} held-out documents has occurred {spec.near} to {spec.words} words before"
        raise ValueError(f"{what}: ask for longer passages, words that are more common, or words --anywhere")
    count = min(spec.num_items, len(found))
    return [found[place * len(found) // count] for place in range(count)]


def _candidates(document: int, text: str, common: set[str], spec: Spec) -> Iterator[Item]:
    places = list(WORD.finditer(text))
    words = [place.group() for place in places]
    for at in range(spec.words, len(words)):
        word, (start, end) = words[at], places[at].span()
        if len(word) < LETTERS or word.lower() in common or text[start - 1] != " ":
            continue
        ends = spec.anywhere or text[end : end + 1] in (".", "!", "?")
        if ends and word in words[at - spec.words : at - spec.near] and word not in words[at - spec.near : at]:
            first, last = places[at - spec.words].start(), places[at - spec.near].start()
            yield Item(document, word, text[first : start - 1], text[last : start - 1])


def _row(codec: TextCodec, text: str, word: str) -> Row:
    """Return the ids of BOS, text and word, and the number of the word's ids."""
    answer = codec.answer(text, word)
    return [codec.bos_id, *codec.encode(text), *answer], len(answer)
