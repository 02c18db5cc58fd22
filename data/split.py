"""Reader of one zarr array of tokens, with checks: shape (documents, tokens), uint16, as in LongCrawl64."""

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

CACHED_BYTES = 256 << 20
"""Size of the decoded chunks that a split keeps: one row of LongCrawl64's, of 8 MiB each."""
_ZERO_RUN = 1024  # a segment of this many zeros is not text in any of our tokenisers


class DamagedTokens(ValueError):
    """A part of a corpus is missing, cut short, altered or no text."""


class Split:
    """Reader of the documents of one array, which checks what it reads. Thread-safe.

    The last `CACHED_BYTES` of decoded chunks are kept, so that reading documents in order decodes every chunk once. `check` is
    called with the path of each file before it is read."""

    def __init__(
        self, path: Path, *, vocab_size: int, document_len: int | None = None, check: Callable[[Path], None] | None = None
    ) -> None:
        self.path = path
        self.vocab_size = vocab_size
        self._check_file = check or (lambda path: None)
        self._check_file(path / ".zarray")
        self._array = open_array(path)
        self.num_documents, stored_len = map(int, self._array.shape)
        if document_len is not None and document_len > stored_len:
            raise ValueError(f"{path} has documents of {stored_len} tokens, fewer than the {document_len} asked for")
        self.document_len = document_len or stored_len
        self._blosc = getattr(getattr(self._array.metadata, "compressor", None), "codec_id", None) == "blosc"
        self._chunk = lru_cache(max(1, CACHED_BYTES // (2 * math.prod(self._array.chunks))))(self._decode)

    def __len__(self) -> int:
        return self.num_documents

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_documents, self.document_len

    def read(self, rows: slice | np.ndarray, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return tokens [start, stop) of the documents `rows`, uint16 of shape (rows, stop - start). DamagedTokens for an id
        outside the vocabulary, a document of zeros, and a chunk that is missing or damaged."""
        indices = np.arange(self.num_documents)[rows] if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64)
        stop = self.document_len if stop is None else stop
        if not 0 <= start < stop <= self.document_len:
            raise IndexError(f"tokens {start} to {stop} of documents of {self.document_len}")
        if indices.size and not 0 <= indices.min() <= indices.max() < self.num_documents:
            raise IndexError(f"documents {indices.min()} to {indices.max()} of {self.num_documents}")
        tokens = np.empty((len(indices), stop - start), np.uint16)
        height, width = self._array.chunks
        for row in np.unique(indices // height):
            inside = indices // height == row
            for column in range(start // width, -(-stop // width)):
                first, last = max(start, column * width), min(stop, (column + 1) * width)
                chunk = self._chunk(int(row), column)
                part = chunk[indices[inside] - row * height, first - column * width : last - column * width]
                tokens[inside, first - start : last - start] = part
        self._check(tokens, indices)
        return tokens

    def _decode(self, row: int, column: int) -> np.ndarray:
        """Decode a chunk after checking its file: zarr reads missing ones as zeros, Blosc reads past the end of a file."""
        chunk = self.path / self._array.metadata.encode_chunk_key((row, column))
        height, width = self._array.chunks
        self._check_file(chunk)
        if fault := _fault(chunk, self._blosc):
            raise DamagedTokens(f"{fault} (documents from {row * height}): fetch or prepare the corpus again")
        try:
            return np.asarray(self._array[row * height : (row + 1) * height, column * width : (column + 1) * width])
        except Exception as error:  # every codec has exceptions of its own: zlib.error, LZMAError, EOFError, RuntimeError, ...
            what = f"{chunk}, documents from {row * height}, is damaged ({error})"
            raise DamagedTokens(f"{what}; fetch or prepare it again") from None

    def _check(self, tokens: np.ndarray, indices: np.ndarray) -> None:
        if tokens.size and tokens.max() >= self.vocab_size:
            bad = int(np.argmax(tokens.max(axis=1) >= self.vocab_size))
            what = f"{self.path}, document {indices[bad]} holds token {tokens[bad].max()}, outside the vocabulary of"
            raise DamagedTokens(f"{what} {self.vocab_size}: the array was made with another tokenizer, or is damaged")
        height, width = self._array.chunks
        columns = range(-(-int(self._array.shape[1]) // width))
        for document in map(int, indices[~tokens.any(axis=1)]):
            whole = (self._chunk(document // height, column)[document % height] for column in columns)
            if tokens.shape[1] >= _ZERO_RUN or not any(part.any() for part in whole):
                empty = f"{self.path}, document {document} is all zeros"
                raise DamagedTokens(f"{empty}, as in a LongCrawl64 mirror: fetch another copy")


def _fault(chunk: Path, blosc: bool) -> str | None:
    """Return what is wrong with a chunk file, judged by its size; None if nothing is."""
    try:
        with chunk.open("rb") as file:
            header, size = file.read(16), chunk.stat().st_size
    except FileNotFoundError:
        return f"{chunk} is missing"
    own_size = max(16, int.from_bytes(header[12:16], "little")) if blosc else 1  # Blosc writes it into bytes 12 to 15
    return f"{chunk} is cut short" if size < own_size else None


def open_array(path: Path) -> Any:
    """Open the zarr array at `path`. ValueError unless it has two dimensions, is uint16 and not empty."""
    import zarr

    if not path.is_dir():
        raise ValueError(f"{path} does not exist: a corpus folder holds train.zarr and heldout.zarr")
    try:
        array = zarr.open_array(path, mode="r")
    except Exception as error:  # zarr has many exceptions of its own
        raise ValueError(f"{path} is not a readable zarr array ({type(error).__name__}: {error})") from None
    if array.dtype != np.dtype("<u2"):
        raise ValueError(f"{path} has dtype {array.dtype}: tokens must be stored as uint16")
    if array.ndim != 2 or 0 in array.shape:
        empty = "is empty, of" if 0 in array.shape else "has"
        raise ValueError(f"{path} {empty} shape {array.shape}: it must be (documents, tokens), with at least one of each")
    return array
