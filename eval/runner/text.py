"""Tokenisers under one interface for every evaluation, and the held-out documents of a corpus as text."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from data.corpus import Corpus
from data.tokenizer import Tokenizer


class TextCodec:
    """Codec between text and token ids, around the suite's own Tokenizer (data/tokenizer.py) or any of Hugging Face. It never
    adds BOS; callers put `bos_id` where they want it. ValueError for a tokeniser with neither BOS nor EOS, and for one without
    a vocabulary, as transformers makes of a folder that has none."""

    def __init__(self, tokenizer: Any):
        self.kind: str | None = None  # of the suite's own tokenisers, as in `DataSpec.tokenizer`
        self._encode, self._decode = tokenizer.encode, tokenizer.decode
        if isinstance(tokenizer, Tokenizer):
            self.kind, self.bos_id = tokenizer.kind, tokenizer.bos_id
            self.highest_id = tokenizer.vocab_size - 1
            self.eos_id: int | None = tokenizer.bos_id
            return
        bos, self.eos_id = tokenizer.bos_token_id, tokenizer.eos_token_id
        if bos is None and self.eos_id is None:
            raise ValueError("the tokeniser has neither a BOS nor an EOS token to start a text with; choose another one")
        self.bos_id = bos if bos is not None else self.eos_id
        self.highest_id = max(tokenizer.vocab_size - 1, self.bos_id)  # without added padding tokens, which no text has
        self._encode = partial(tokenizer.encode, add_special_tokens=False)
        self._decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
        if not self._encode("text"):
            raise ValueError("it has no tokens for text: its vocabulary is missing")
        tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True  # texts are cut later

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text` alone."""
        return list(self._encode(text))

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids` without BOS and EOS."""
        return self._decode([i for i in ids if i not in (self.bos_id, self.eos_id)])

    def answer(self, asked: str, answer: str) -> list[int]:
        """Return the ids of `answer` (given without a leading space) as they follow a text that ends with `asked`."""
        before, whole = self.encode(asked), self.encode(f"{asked} {answer}")
        return whole[len(before) :] if whole[: len(before)] == before else self.encode(f" {answer}")


def heldout_texts(corpus: Corpus) -> Iterator[str]:
    """Yield held-out documents as text, in order."""
    for row in range(len(corpus.heldout)):
        yield corpus.tokenizer.decode(corpus.heldout.read(slice(row, row + 1))[0].tolist())
