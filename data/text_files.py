"""Documents in text files: .txt (one each), .jsonl (a `text` field per line), .parquet (a `text` column), or compressed."""

import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from results.atomic import write_atomic

_SUFFIXES = re.compile(r"(\.txt|\.jsonl|\.parquet)(|\.xz|\.gz|\.zst)$")
_REMEMBER_FROM_BYTES = 1 << 20  # hashing less costs less than looking it up
_ALLOWED = "a folder, a glob or a file of .txt, .jsonl or .parquet, each also .xz, .gz or .zst"


class FileDigests:
    """SHA-256 of files, cached by path, size, mtime and ctime (which cannot be set back), so that a second call reads nothing.
    `memory`: the file of the cache, written if possible; it may be deleted at any time."""

    def __init__(self, memory: Path) -> None:
        self._memory, self._known = memory, {}
        with suppress(OSError, ValueError, RecursionError):
            self._known = dict(json.loads(memory.read_bytes()))

    def sha256(self, path: Path) -> str:
        """Return the hex digest of the file's bytes. ValueError if it cannot be read."""
        try:
            stat, key = path.stat(), str(path.resolve())
            stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
            known = self._known.get(key, [None])
            if known[:-1] == stamp:
                return str(known[-1])
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ValueError(f"cannot read {path} ({error.strerror}): check that it exists and may be read") from None
        if stat.st_size >= _REMEMBER_FROM_BYTES:
            self._known[key] = [*stamp, digest]
            with suppress(OSError):  # only a cache: a full or read-only disk is reported by code that must write there
                write_atomic(self._memory, json.dumps(self._known))
        return digest


class TextSource:
    """Documents of local text files, in the order of the paths given; files of folders and globs are sorted by name."""

    kind = "text"

    def __init__(self, patterns: str) -> None:
        parts = [patterns] if Path(patterns).expanduser().exists() else patterns.split(",")
        names = [name for name in map(str.strip, parts) if name]  # an empty one would be the current folder
        if not names:
            raise ValueError(f"data 'text:{patterns}' names no path: give {_ALLOWED}")
        files = [file for name in names for file in _expand(name)]
        self.files = list({file.resolve(): file for file in files}.values())

    def digest(self, file_digests: FileDigests) -> str:
        """Return the digest of the files' bytes, formats and order; their paths and names do not matter."""
        parts = [["".join(_suffixes(path)), file_digests.sha256(path)] for path in self.files]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def documents(self) -> Iterator[str]:
        for path in self.files:
            yield from read_documents(path)


def read_documents(path: Path) -> Iterator[str]:
    """Yield the documents of one file. ValueError names a file that cannot be read, and the line of a .jsonl."""
    form, compression = _suffixes(path)
    try:
        with _OPEN[compression](path, "rb") as file:
            if form == ".txt":
                yield file.read().decode("utf-8-sig")
            else:
                yield from (_read_jsonl if form == ".jsonl" else _read_parquet)(path, file)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or leave it out") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"cannot read {path} ({said}): is the file whole, and its suffix right?") from None


def _open_zstd(path: Path, mode: str) -> Any:
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))


_OPEN: dict[str, Callable[..., Any]] = {"": open, ".xz": lzma.open, ".gz": gzip.open, ".zst": _open_zstd}


def _expand(name: str) -> list[Path]:
    path = Path(name).expanduser()
    if path.is_file() and _suffixes(path) is None:
        raise ValueError(f"data file {name!r} has an unknown suffix: give {_ALLOWED}")
    hits = [path] if path.exists() else list(map(Path, sorted(glob.glob(str(path), recursive=True))))
    if not hits:
        raise ValueError(f"data path {name!r} does not exist or matches nothing: give {_ALLOWED}")
    matches = [match for hit in hits for match in (files_below(hit) if hit.is_dir() else [hit])]
    files = [match for match in matches if match.is_file() and _suffixes(match) is not None]
    if not files:
        raise ValueError(f"data path {name!r} holds no text file: give {_ALLOWED}")
    return files


def files_below(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted. Links to folders are followed, and each folder is read once: by its own path
    if it lies below `folder`, else by the first link to it."""
    found, seen, todo = list[Path](), set[str](), deque([str(folder)])
    while todo:
        links = []
        for place, folders, names in os.walk(todo.popleft()):  # os.walk itself follows no links
            if (real := os.path.realpath(place)) in seen:
                folders.clear()
                continue
            seen.add(real)
            found += [file for file in (Path(place, name) for name in names) if file.is_file()]
            links += [path for path in (os.path.join(place, name) for name in folders) if os.path.islink(path)]
        todo += sorted(links)
    return sorted(found)


def _suffixes(path: Path) -> Any:
    """Return (format, compression), or None when the suffix is unknown."""
    found = _SUFFIXES.search(path.name.lower())
    return found and found.groups()


def _read_jsonl(path: Path, file: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, line {number} is not UTF-8 text (byte {error.start}): convert the file") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number} is not JSON ({error}): fix the line, or remove it") from None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise ValueError(f"{path}, line {number} has no `text` field holding a string: every line needs one")
        yield row["text"]


def _read_parquet(path: Path, file: Any) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(file.read()))
        names = table.schema_arrow.names
        if "text" not in names:
            raise ValueError(f"{path} has no `text` column, only {', '.join(names)}: rename the column of the text")
        kind = table.schema_arrow.field("text").type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if kind not in (pa.string(), pa.large_string(), pa.string_view()):
            raise ValueError(f"{path} has a `text` column of {kind}, not of strings: convert it")
        for batch in table.iter_batches(batch_size=256, columns=["text"]):
            yield from filter(lambda text: text is not None, batch.column(0).to_pylist())
    except pa.ArrowException as error:
        raise OSError(error) from None
