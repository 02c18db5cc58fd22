"""Reader of one zarr array of tokens, with checks: shape (documents, tokens), uint16, as in LongCrawl64."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CACHED_BYTES = 256 << 20
"""Size of a split's cache of decoded chunks: one row of 2048 x 2048 chunks of 65,536 tokens, LongCrawl64's largest block."""
_ZERO_RUN = 1024  # a segment of this many zeros is not text in any of our tokenisers


class Split:
    """Reader of the documents of one array, which checks what it reads. Thread-safe.

    Chunks are decoded a whole block at a time (one row of chunks, as many columns as the segment needs) and cached up to
    `CACHED_BYTES`, so that reading documents in order decodes every chunk once. `check` is called with the path of each file
    before it is read."""

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
        self._blocks: OrderedDict[tuple[int, int, int], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.num_documents

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_documents, self.document_len

    def read(self, rows: slice | np.ndarray, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return tokens [start, stop) of the documents `rows`, uint16 of shape (rows, stop - start). ValueError for an id
        outside the vocabulary, a document of zeros, and a chunk that is missing or damaged."""
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
        size = (last_row - first_row) * (last_col - first_col) * 2
        if size > CACHED_BYTES:
            low, high = int(indices.min()), int(indices.max()) + 1
            return self._decode(slice(low, high), slice(start, stop))[indices - low]
        key = (block, first_col, last_col)
        if key not in self._blocks:
            while self._blocks and sum(b.nbytes for b in self._blocks.values()) + size > CACHED_BYTES:
                self._blocks.popitem(last=False)
            self._blocks[key] = self._decode(slice(first_row, last_row), slice(first_col, last_col))
        self._blocks.move_to_end(key)
        return self._blocks[key][indices - first_row, start - first_col : stop - first_col]

    def _decode(self, rows: slice, cols: slice) -> np.ndarray:
        """Decode chunks after checking their files: zarr reads missing ones as zeros, Blosc reads past the end of a file."""
        chunk_rows, chunk_cols = self._array.chunks
        for i in range(rows.start // chunk_rows, -(-rows.stop // chunk_rows)):
            for j in range(cols.start // chunk_cols, -(-cols.stop // chunk_cols)):
                chunk = self.path / self._array.metadata.encode_chunk_key((i, j))
                self._check_file(chunk)
                if fault := _fault(chunk, self._blosc):
                    raise ValueError(f"{fault} (documents from {i * chunk_rows}): fetch or prepare the corpus again")
        try:
            return np.asarray(self._array[rows, cols])
        except Exception as error:  # every codec has exceptions of its own: zlib.error, LZMAError, EOFError, RuntimeError, ...
            which = f"{self.path}, documents {rows.start} to {rows.stop - 1}"
            raise ValueError(f"{which}: a chunk is damaged ({error}); fetch or prepare it again") from None

    def _check(self, tokens: np.ndarray, indices: np.ndarray) -> None:
        if tokens.size and tokens.max() >= self.vocab_size:
            bad = int(np.argmax(tokens.max(axis=1) >= self.vocab_size))
            what = f"{self.path}, document {indices[bad]} holds token {tokens[bad].max()}, outside the vocabulary of"
            raise ValueError(f"{what} {self.vocab_size}: the array was made with another tokenizer, or is damaged")
        whole = slice(0, int(self._array.shape[1]))
        for document in map(int, indices[~tokens.any(axis=1)]):
            if tokens.shape[1] >= _ZERO_RUN or not self._decode(slice(document, document + 1), whole).any():
                empty = f"{self.path}, document {document} is all zeros"
                raise ValueError(f"{empty}, as in a LongCrawl64 mirror: fetch another copy")


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
