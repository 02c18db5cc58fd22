"""Documents in text files: .txt (one each), .jsonl (a `text` field per line), .parquet (a `text` column), or compressed."""

import glob
import gzip
import hashlib
import io
import json
import lzma
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from data.file_digests import FileDigests
from data.prefetch import Prefetcher

FORMATS = (".txt", ".jsonl", ".parquet")
COMPRESSIONS = ("", ".xz", ".gz", ".zst")
_FILES_AHEAD, _BLOCKS_AHEAD, _BLOCK_BYTES = 8, 64, 1 << 20  # 512 MiB of text at most
_ALLOWED = "a folder, a glob or a file of .txt, .jsonl or .parquet, each also .xz, .gz or .zst"


class TextSource:
    """Documents of local text files, in the order of the paths given, folders and globs sorted by name."""

    kind = "text"

    def __init__(self, patterns: str) -> None:
        self.files = _find_files(patterns)

    def digest(self, file_digests: FileDigests) -> str:
        """Return the digest of the files' bytes, formats and order; where they lie and what they are called does not matter."""
        parts = [["".join(_suffixes(path)), file_digests.sha256(path)] for path in self.files]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def documents(self) -> Iterator[str]:
        """Yield documents in order; compressed files are decompressed some way ahead, several at once."""
        ahead: deque[IO[bytes] | None] = deque()
        try:
            for number, path in enumerate(self.files):
                for coming in self.files[number + len(ahead) : number + _FILES_AHEAD]:
                    compressed = _suffixes(coming)[1] != ""
                    ahead.append(io.BufferedReader(_Ahead(coming), _BLOCK_BYTES) if compressed else None)
                yield from read_documents(path, ahead.popleft())
        finally:
            for file in filter(None, ahead):
                file.close()


class _Ahead(io.RawIOBase):
    """Content of a compressed file, decompressed on a thread of its own (it needs no lock of Python's meanwhile)."""

    def __init__(self, path: Path) -> None:
        self._prefetcher = Prefetcher(lambda block: block, _blocks(path), depth=_BLOCKS_AHEAD)
        self._blocks = iter(self._prefetcher)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, (b"", b""))[1])
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._prefetcher.close()
        super().close()


def _blocks(path: Path) -> Iterator[bytes]:
    with _open(path) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def read_documents(path: Path, file: IO[bytes] | None = None) -> Iterator[str]:
    """Yield the documents of one file (of its decompressed content `file`, where that is open already).

    ValueError names the file, and the line of a .jsonl, where it cannot be read.
    """
    form, _ = _suffixes(path)
    reader = {".txt": _read_txt, ".jsonl": _read_jsonl, ".parquet": _read_parquet}[form]
    try:
        with file or _open(path) as opened:
            yield from reader(path, opened)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or leave it out") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"cannot read {path} ({error}): is the file whole, and its suffix right?") from None


def _find_files(patterns: str) -> list[Path]:
    if not patterns.strip():
        raise ValueError(f"data 'text:' names no path: give {_ALLOWED}")
    names = [patterns] if Path(patterns).expanduser().exists() else patterns.split(",")
    files = [file for name in names for file in _expand(name.strip())]
    unique = {file.resolve(): file for file in files}
    return list(unique.values())


def _expand(name: str) -> list[Path]:
    path = Path(name).expanduser()
    if path.is_file():
        if _suffixes(path) is None:
            raise ValueError(f"data file {name!r} has an unknown suffix: give {_ALLOWED}")
        return [path]
    matches: list[Path] = []
    for hit in [path] if path.is_dir() else map(Path, sorted(glob.glob(str(path), recursive=True))):
        matches += sorted(hit.rglob("*")) if hit.is_dir() else [hit]
    if not matches and not path.is_dir():
        raise ValueError(f"data path {name!r} does not exist or matches nothing: give {_ALLOWED}")
    files = [match for match in matches if match.is_file() and _suffixes(match) is not None]
    if not files:
        raise ValueError(f"data path {name!r} holds no text file: give {_ALLOWED}")
    return files


def _suffixes(path: Path) -> Any:
    """Return (format, compression), or None when the suffix is unknown."""
    for compression in COMPRESSIONS:
        for form in FORMATS:
            if path.name.lower().endswith(form + compression):
                return form, compression
    return None


def _open(path: Path) -> IO[bytes]:
    _, compression = _suffixes(path)
    if compression == ".xz":
        return lzma.open(path, "rb")
    if compression == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if compression == ".zst":
        import pyarrow as pa

        return pa.input_stream(str(path), compression="zstd")
    return path.open("rb")


def _read_txt(path: Path, file: IO[bytes]) -> Iterator[str]:
    yield file.read().decode("utf-8-sig")


def _read_jsonl(path: Path, file: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(io.BufferedReader(file), 1):  # type: ignore[type-var]
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except UnicodeDecodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number} is not JSON ({error}): mend the line, or take it out") from None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise ValueError(f"{path}, line {number} has no `text` field holding a string: every line needs one")
        yield row["text"]


def _read_parquet(path: Path, file: IO[bytes]) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(file.read()))
        if "text" not in table.schema_arrow.names:
            raise ValueError(
                f"{path} has no `text` column, only {', '.join(table.schema_arrow.names)}: rename the column of the text"
            )
        kind = table.schema_arrow.field("text").type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
            raise ValueError(f"{path} has a `text` column of {kind}, not of strings: convert it")
        for batch in table.iter_batches(batch_size=256, columns=["text"]):
            yield from (text for text in batch.column(0).to_pylist() if text is not None)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"cannot read {path} ({' '.join(str(error).split())}): is the file whole, and its suffix right?"
        ) from None
