"""Text and tokens: a small view of a tokeniser for every evaluation, and the held-out documents of a corpus as text."""

from collections.abc import Iterator
from typing import Any

from data.corpus import Corpus


class TextCodec:
    """Codec between text and token ids; BOS is never added or hidden, callers put `bos_id` where they want it. Wraps the
    suite's own Tokenizer (data/tokenizer.py) or any of Hugging Face. Raises ValueError if there is neither BOS nor EOS."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._is_hf = hasattr(tokenizer, "convert_ids_to_tokens")
        if self._is_hf:
            bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
            if bos is None and eos is None:
                raise ValueError("the tokeniser has neither a BOS nor an EOS token to start a text with; choose another one")
            self.bos_id: int = bos if bos is not None else eos
            self.eos_id: int | None = eos
            tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True  # texts are cut later
        else:
            self.bos_id = self.eos_id = tokenizer.bos_id

    @property
    def kind(self) -> str | None:
        """Kind of one of the suite's own tokenisers, as in `DataSpec.tokenizer`; None for others."""
        return None if self._is_hf else self._tokenizer.kind

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text` alone."""
        options = {"add_special_tokens": False} if self._is_hf else {}
        return list(self._tokenizer.encode(text, **options))

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`; BOS and EOS leave no trace."""
        plain = [i for i in ids if i not in (self.bos_id, self.eos_id)]
        return self._tokenizer.decode(plain, **({"clean_up_tokenization_spaces": False} if self._is_hf else {}))

    def answer(self, asked: str, answer: str) -> list[int]:
        """Return the ids of `answer` (no space in front) as they follow a text that ends with `asked`."""
        before, whole = self.encode(asked), self.encode(f"{asked} {answer}")
        return whole[len(before) :] if whole[: len(before)] == before else self.encode(f" {answer}")


def heldout_texts(corpus: Corpus) -> Iterator[str]:
    """Yield held-out documents as text, in order."""
    for row in range(len(corpus.heldout)):
        yield corpus.tokenizer.decode(corpus.heldout.read(slice(row, row + 1))[0].tolist())
