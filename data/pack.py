"""Packed corpus: short documents are concatenated, each with BOS in front, and cut into rows of equal length.

The source is read in one pass, in its own order and in constant memory. Duplicates are therefore kept, and whether a document
is held out follows from the digest of its text alone. A separate held-out text is read first and its digests are kept: if the
source has the same documents, they are left out and not counted. A row may hold several documents and begin inside one; BOS
marks where each begins. A BPE is trained on the first train documents.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from data.corpus import Counts, write_about
from data.plan import CorpusPlan, Progress
from data.prefetch import Prefetcher
from data.tokenizer import BOS, Tokenizer, train_bpe

BPE_CHARS = 256 << 20
ROWS_PER_WRITE = 256
_BATCH_CHARS = 8 << 20

Item = TypeVar("Item")


def build_packed(plan: CorpusPlan, texts: Callable[[], Iterator[tuple[bool, str]]], folder: Path, report: Progress) -> None:
    """Write the corpus of `plan`. Each call of `texts` yields every text with a flag for held-out text, which comes first.
    ValueError if a split has no row."""

    def split() -> Iterator[tuple[bool, str]]:
        not_to_train_on: set[bytes] = set()
        for heldout, text in texts():
            if text.strip():
                digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
                if plan.heldout is None:
                    heldout = int.from_bytes(digest[:8], "big") < plan.heldout_fraction * 2**64
                elif heldout:
                    not_to_train_on.add(digest)
                if heldout or digest not in not_to_train_on:
                    yield heldout, text

    def first_chars(limit: int = BPE_CHARS) -> Iterator[str]:
        texts = (text for heldout, text in split() if not heldout)
        while limit > 0 and (text := next(texts, None)) is not None:
            yield text
            limit -= len(text)

    tokenizer = tokenizer_of(plan, first_chars(), report)
    train, heldout = (_Rows(folder / f"{name}.zarr", plan.spec.document_len, tokenizer) for name in ("train", "heldout"))
    with Prefetcher(batches_of(split(), lambda item: len(item[1])), depth=1) as batches:
        for number, batch in enumerate(batches):
            for (is_held_out, _), ids in zip(batch, tokenizer.encode_batch([text for _, text in batch]), strict=True):
                (heldout if is_held_out else train).add(ids)
            if number % 8 == 0:
                report(f"packed {train.documents + heldout.documents} documents, {train.tokens / 1e6:.1f}M train tokens")
            if plan.max_tokens is not None and train.tokens >= plan.max_tokens:
                break
    for name, rows in (("train", train), ("held-out", heldout)):
        rows.flush()
        if not rows.count:
            few = f"the {name} documents have {rows.tokens} tokens in all, less than one row of {plan.spec.document_len}"
            raise ValueError(f"data {plan.spec.source!r}: {few}: give more text, or a smaller document_len")
    counts = Counts(
        documents=train.documents + heldout.documents,
        train_documents=train.documents,
        heldout_documents=heldout.documents,
        train_rows=train.count,
        heldout_rows=heldout.count,
        dropped_tokens=train.left + heldout.left,
    )
    finish(plan, tokenizer, counts, folder, report)


def finish(plan: CorpusPlan, tokenizer: Tokenizer, counts: Counts, folder: Path, report: Progress) -> None:
    """Write the tokeniser and corpus.json."""
    tokenizer.save(folder / "tokenizer")
    write_about(folder, plan.spec, counts)
    report(counts.summary)


def tokenizer_of(plan: CorpusPlan, train_texts: Iterator[str], report: Progress) -> Tokenizer:
    """Load the planned tokeniser, or train it on `train_texts`, which is read only in that case."""
    if plan.tokenizer.trained:
        report(f"training {plan.tokenizer.kind} on train documents")
        tokenizer = train_bpe(train_texts, plan.spec.vocab_size)
    else:
        tokenizer = plan.tokenizer.load()
    assert (tokenizer.vocab_size, tokenizer.bos_id) == (plan.spec.vocab_size, plan.spec.bos_id)
    return tokenizer


class _Rows:
    """Writer of one split, which writes its rows once `ROWS_PER_WRITE` of them are in memory."""

    def __init__(self, path: Path, document_len: int, tokenizer: Tokenizer) -> None:
        self._array, self._length = create_array(path, 0, document_len, tokenizer.kind), document_len
        self._bos = np.array([tokenizer.bos_id], np.uint16)
        self._parts = [self._bos[:0]]
        self.documents = self.tokens = self.count = self.left = 0

    def add(self, ids: np.ndarray) -> None:
        self.documents += 1
        self.tokens += 1 + len(ids)
        self.left += 1 + len(ids)
        self._parts += [self._bos, ids]
        if self.left >= ROWS_PER_WRITE * self._length:
            self.flush()

    def flush(self) -> None:
        """Write all complete rows."""
        whole, rest = np.split(np.concatenate(self._parts), [self.left // self._length * self._length])
        if len(whole):
            self._array.append(whole.reshape(-1, self._length))
        self._parts, self.left = [rest], len(rest)
        self.count += len(whole) // self._length


def batches_of(texts: Iterable[Item], num_chars: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield batches of a few MB of text, to be tokenised together."""
    batch: list[Item] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += num_chars(text)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    yield from [batch] if batch else []


def create_array(path: Path, rows: int, document_len: int, encoder: str) -> Any:
    """Create a zarr array of tokens in LongCrawl64's layout."""
    import numcodecs
    import zarr

    return zarr.create_array(
        store=path,
        shape=(rows, document_len),
        chunks=(min(256, rows or 256), min(2048, document_len)),
        dtype="uint16",
        compressors=numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.SHUFFLE),
        fill_value=0,
        zarr_format=2,
        attributes={"encoder": encoder, "bos": BOS},
    )
