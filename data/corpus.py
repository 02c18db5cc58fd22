"""A tokenised corpus on disk: train.zarr and heldout.zarr, uint16 of shape (documents, document_len), as in LongCrawl64.

Ours carry their tokeniser beside the arrays and a corpus.json, which is sealed and holds a CRC-32 of every other file, checked
when the file is first read. LongCrawl64 itself, which has no digests, is read in place.
"""

import functools
import hashlib
import json
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from data.spec import DataSpec
from data.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, TokenizerChoice
from models.spec import STRICT
from results.sealed import read_sealed, write_sealed

CACHED_BYTES = 256 << 20
"""Decoded chunks kept per split: one row of 2048 x 2048 chunks of 65,536-token documents, LongCrawl64's largest block."""
_ZERO_RUN = 1024  # that many zeros from a document's segment are no text in any of our tokenisers
_FINGERPRINT_DOCUMENTS = 64


@dataclass(frozen=True, config=STRICT)
class Counts:
    """What became of the source's documents. `dropped_tokens`: the rests that fill no row, short documents included."""

    documents: int
    train_documents: int
    heldout_documents: int
    train_rows: int
    heldout_rows: int
    duplicates: int = 0
    too_short: int = 0
    dropped_tokens: int = 0

    @property
    def summary(self) -> str:
        return (
            f"{self.documents} documents ({self.duplicates} duplicates, {self.too_short} too short) gave {self.train_rows} "
            f"train and {self.heldout_rows} held-out rows; {self.dropped_tokens} tokens left over"
        )


@dataclass(frozen=True)
class About:
    """What corpus.json says; `files` is the CRC-32 of every other file of the folder by its path in it."""

    spec: DataSpec
    counts: Counts
    files: dict[str, int]


_ABOUT = TypeAdapter(About)


def write_about(folder: Path, spec: DataSpec, counts: Counts) -> None:
    """Write corpus.json, the last file of a corpus."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): zlib.crc32(path.read_bytes()) for path in paths}
    write_sealed(folder / "corpus.json", asdict(About(spec, counts, files)))


def read_about(folder: Path) -> About:
    """ValueError where corpus.json is missing, of another form or altered."""
    content = read_sealed(folder / "corpus.json", _remedy(folder))
    try:
        return _ABOUT.validate_json(json.dumps(content))
    except ValidationError:
        raise ValueError(f"{folder / 'corpus.json'} is of another version: {_remedy(folder)}") from None


def _remedy(folder: Path) -> str:
    return f"delete {folder}, it is made again when it is next needed"


def _checker(folder: Path, files: dict[str, int]) -> Callable[[Path], None]:
    """A function that reads a file of a prepared corpus against its CRC-32, once; ValueError: missing or altered."""

    @functools.cache
    def check(path: Path) -> None:
        try:
            crc = zlib.crc32(path.read_bytes())
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}): {_remedy(folder)}") from None
        if crc != files.get(path.relative_to(folder).as_posix()):
            raise ValueError(f"{path} was altered since the corpus was made (its CRC-32 differs): {_remedy(folder)}")

    return check


class Split:
    """Reads documents of one zarr array of shape (documents, tokens), uint16, and checks what it reads.

    Chunks are decoded a whole block at a time (one row of chunks, as many columns as the segment needs) and kept up to
    `CACHED_BYTES`, so that reading documents in order decodes every chunk once. Thread-safe. `check` is called with each file
    before it is used.
    """

    def __init__(
        self, path: Path, *, vocab_size: int, document_len: int | None = None, check: Callable[[Path], None] | None = None
    ) -> None:
        self.path = path
        self.vocab_size = vocab_size
        self._check_file = check or (lambda path: None)
        self._check_file(path / ".zarray")
        self._array = _open_array(path)
        self.num_documents, stored_len = map(int, self._array.shape)
        if document_len is not None and document_len > stored_len:
            raise ValueError(f"{path} has documents of {stored_len} tokens, fewer than the {document_len} asked for")
        self.document_len = document_len or stored_len
        compressor = getattr(self._array.metadata, "compressor", None)
        self._blosc = getattr(compressor, "codec_id", None) == "blosc"
        self._blocks: OrderedDict[tuple[int, int, int], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.num_documents

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_documents, self.document_len

    def read(self, rows: slice | np.ndarray, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Tokens [start, stop) of the documents `rows`, uint16 of shape (rows, stop - start).

        ValueError names the document where an id lies outside the vocabulary, where all tokens are zero, or where a chunk is
        missing or damaged.
        """
        indices = np.arange(self.num_documents)[rows] if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64)
        stop = self.document_len if stop is None else stop
        if not 0 <= start < stop <= self.document_len:
            raise IndexError(f"tokens {start} to {stop} of documents of {self.document_len}")
        if indices.size and not 0 <= indices.min() <= indices.max() < self.num_documents:
            raise IndexError(f"documents {indices.min()} to {indices.max()} of {self.num_documents}")
        tokens = np.empty((len(indices), stop - start), np.uint16)
        chunk_rows = self._array.chunks[0]
        with self._lock:
            for block in np.unique(indices // chunk_rows):
                inside = indices // chunk_rows == block
                tokens[inside] = self._read_block(int(block), indices[inside], start, stop)
        self._check(tokens, indices)
        return tokens

    def _read_block(self, block: int, indices: np.ndarray, start: int, stop: int) -> np.ndarray:
        chunk_rows, chunk_cols = self._array.chunks
        first_row = block * chunk_rows
        last_row = min(first_row + chunk_rows, self.num_documents)
        first_col = start // chunk_cols * chunk_cols
        last_col = min(-(-stop // chunk_cols) * chunk_cols, int(self._array.shape[1]))
        if (last_row - first_row) * (last_col - first_col) * 2 > CACHED_BYTES:
            low, high = int(indices.min()), int(indices.max()) + 1
            return self._decode(slice(low, high), slice(start, stop))[indices - low]
        key = (block, first_col, last_col)
        if key not in self._blocks:
            size = (last_row - first_row) * (last_col - first_col) * 2
            while self._blocks and sum(b.nbytes for b in self._blocks.values()) + size > CACHED_BYTES:
                self._blocks.popitem(last=False)
            self._blocks[key] = self._decode(slice(first_row, last_row), slice(first_col, last_col))
        self._blocks.move_to_end(key)
        return self._blocks[key][indices - first_row, start - first_col : stop - first_col]

    def _decode(self, rows: slice, cols: slice) -> np.ndarray:
        """Straight from the files, which are looked at first: zarr reads a missing chunk as zeros, and Blosc reads on beyond
        the end of one that was cut short."""
        chunk_rows, chunk_cols = self._array.chunks
        for i in range(rows.start // chunk_rows, -(-rows.stop // chunk_rows)):
            for j in range(cols.start // chunk_cols, -(-cols.stop // chunk_cols)):
                chunk = self.path / self._array.metadata.encode_chunk_key((i, j))
                self._check_file(chunk)
                fault = _fault(chunk, self._blosc)
                if fault:
                    raise ValueError(
                        f"{fault} (documents from {i * chunk_rows}): this copy of the corpus is incomplete, "
                        "fetch or prepare it again"
                    )
        try:
            return np.asarray(self._array[rows, cols])
        except Exception as error:  # every codec has exceptions of its own: zlib.error, LZMAError, EOFError, RuntimeError, ...
            raise ValueError(
                f"{self.path}, documents {rows.start} to {rows.stop - 1}: a chunk is damaged ({error}); "
                "fetch or prepare it again"
            ) from None

    def _check(self, tokens: np.ndarray, indices: np.ndarray) -> None:
        if tokens.size and tokens.max() >= self.vocab_size:
            bad = int(np.argmax(tokens.max(axis=1) >= self.vocab_size))
            raise ValueError(
                f"{self.path}, document {indices[bad]} holds token {tokens[bad].max()}, outside the vocabulary of "
                f"{self.vocab_size}: the array was made with another tokenizer, or is damaged"
            )
        for bad in map(int, np.flatnonzero(~tokens.any(axis=1))):
            document = int(indices[bad])
            whole = slice(0, int(self._array.shape[1]))
            if tokens.shape[1] >= _ZERO_RUN or not self._decode(slice(document, document + 1), whole).any():
                raise ValueError(
                    f"{self.path}, document {document} is all zeros (a known fault of a LongCrawl64 mirror): "
                    "fetch these chunks again, from another copy"
                )


class Corpus:
    """`train` and `heldout` splits with their `spec`; `counts` is None for LongCrawl64."""

    def __init__(
        self, folder: Path, spec: DataSpec, about: About | None = None, tokenizer: TokenizerChoice | None = None
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.counts = None if about is None else about.counts
        self._about = about
        self._tokenizer = tokenizer
        self._check = None if about is None else _checker(folder, about.files)
        size = {"vocab_size": spec.vocab_size, "document_len": spec.document_len}
        self.train = Split(folder / "train.zarr", **size, check=self._check)
        self.heldout = Split(folder / "heldout.zarr", **size, check=self._check)

    @staticmethod
    def open(folder: Path, *, document_len: int | None = None, tokenizer: TokenizerChoice | None = None) -> "Corpus":
        """A prepared corpus, or a LongCrawl64 folder, of whose documents only the first `document_len` tokens are then used.

        `tokenizer` says where LongCrawl64's vocabulary lies, for those who need text; ours lies in the folder.
        """
        if (folder / "corpus.json").exists():
            about = read_about(folder)
            return Corpus(folder, about.spec, about)
        return Corpus(folder, longcrawl64_spec(folder, document_len), tokenizer=tokenizer or TokenizerChoice("gpt2-json"))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The corpus's tokeniser. ValueError where GPT-2's vocabulary is needed and not found."""
        if self._tokenizer is not None:
            return self._tokenizer.load()
        assert self._about is not None and self._check is not None
        for name in self._about.files:
            if name.startswith("tokenizer/"):
                self._check(self.folder / name)
        return Tokenizer.load(self.folder / "tokenizer")


def longcrawl64_spec(folder: Path, document_len: int | None = None) -> DataSpec:
    """The spec of a LongCrawl64 folder. Its fingerprint is taken from the shapes and the first documents, not from 800 GB."""
    digest = hashlib.sha256(b"longcrawl64")
    lengths = []
    for name in ("train.zarr", "heldout.zarr"):
        split = Split(folder / name, vocab_size=GPT2_VOCAB_SIZE, document_len=document_len)
        digest.update(json.dumps([name, split.shape]).encode())
        digest.update(split.read(slice(0, _FINGERPRINT_DOCUMENTS), 0, min(split.document_len, 2048)).tobytes())
        lengths.append(split.document_len)
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{folder}: train.zarr has documents of {lengths[0]} tokens and heldout.zarr of {lengths[1]}; they must agree"
        )
    return DataSpec(
        source="longcrawl64",
        tokenizer="gpt2-json",
        vocab_size=GPT2_VOCAB_SIZE,
        bos_id=GPT2_VOCAB_SIZE - 1,
        document_len=lengths[0],
        fingerprint=digest.hexdigest()[:16],
    )


def longcrawl64_counts(folder: Path) -> Counts:
    """Rows of a LongCrawl64 folder, from the shapes of its arrays: a row is a document there."""
    train, heldout = (int(_open_array(folder / name).shape[0]) for name in ("train.zarr", "heldout.zarr"))
    return Counts(train + heldout, train, heldout, train_rows=train, heldout_rows=heldout)


def _fault(chunk: Path, blosc: bool) -> str | None:
    """What is wrong with a chunk file, as far as its size tells."""
    try:
        with chunk.open("rb") as file:
            header = file.read(16)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return f"{chunk} is missing"
    own_size = int.from_bytes(header[12:16], "little") if blosc else 1  # Blosc writes it into bytes 12 to 15
    if size < max(own_size, 16 if blosc else 1):
        return f"{chunk} is cut short"
    return None


def _open_array(path: Path) -> Any:
    """The zarr array at `path`, checked: two dimensions, uint16, not empty."""
    import zarr

    if not path.is_dir():
        raise ValueError(f"{path} does not exist: a corpus folder holds train.zarr and heldout.zarr")
    try:
        array = zarr.open_array(path, mode="r")
    except Exception as error:  # zarr has a family of its own for each way of not being an array
        raise ValueError(f"{path} is not a readable zarr array ({type(error).__name__}: {error})") from None
    if array.dtype != np.dtype("<u2"):
        raise ValueError(f"{path} has dtype {array.dtype}: tokens must be stored as uint16")
    if array.ndim != 2:
        raise ValueError(f"{path} has shape {array.shape}: it must be (documents, tokens)")
    if 0 in array.shape:
        raise ValueError(f"{path} is empty (shape {array.shape}): it must hold at least one document")
    return array
