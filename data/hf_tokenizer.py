"""Hugging Face tokeniser classes of the suite: they save and load with the usual methods, and handle the JSON quirk.

Saved folders carry this file, so `AutoTokenizer.from_pretrained(folder, trust_remote_code=True)` works outside the suite too.
"""

from typing import Any

from transformers import PreTrainedTokenizerFast

from .json_escape import json_escape, json_unescape


class CorpusTokenizer(PreTrainedTokenizerFast):
    """Byte-level tokeniser with BOS in front when `add_special_tokens` is set; the text "<|endoftext|>" is ordinary text."""

    # Neither class may define __init__: transformers 5 then rebuilds the tokeniser on loading, without its pre-tokeniser.


class JSONTokenizer(CorpusTokenizer):
    """The same for a corpus whose text was JSON-escaped before BPE (LongCrawl64): encoding escapes, decoding reverses it."""

    def _encode_plus(self, text: Any, text_pair: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        if kwargs.get("return_offsets_mapping"):
            raise ValueError("return_offsets_mapping: offsets would point into the JSON-escaped text, not into yours")
        pair = None if text_pair is None else _escape_all(text_pair)
        return super()._encode_plus(_escape_all(text), pair, **kwargs)

    def _decode(self, *args: Any, **kwargs: Any) -> str:
        return json_unescape(super()._decode(*args, **kwargs))

    def tokenize(self, text: str, *args: Any, **kwargs: Any) -> list[str]:
        # The parent's `tokenize` calls `_encode_plus` in some versions of transformers only.
        ids = self.encode(text, add_special_tokens=kwargs.get("add_special_tokens", False))
        return [str(self.convert_ids_to_tokens(i)) for i in ids]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return json_unescape(super().convert_tokens_to_string(tokens))


def _escape_all(text: Any) -> Any:
    return json_escape(text) if isinstance(text, str) else [_escape_all(part) for part in text]


CorpusTokenizer.register_for_auto_class("AutoTokenizer")
JSONTokenizer.register_for_auto_class("AutoTokenizer")
