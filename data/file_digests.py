"""SHA-256 of files, remembered by path, size and times so that a second call reads nothing. The time of the last change of a
file's entry is one of them: nobody can set it back."""

import hashlib
from contextlib import suppress
from pathlib import Path

from results.sealed import read_sealed, write_sealed

_REMEMBER_FROM_BYTES = 1 << 20  # hashing less costs less than looking it up


class FileDigests:
    """Digests with a `memory`: a sealed file that is written when possible and may be deleted at any time."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        try:
            self._known: dict[str, list[int | str]] = read_sealed(memory, "")
        except ValueError:
            self._known = {}

    def sha256(self, path: Path) -> str:
        """Return the hex digest of the file's bytes. ValueError where it cannot be read."""
        try:
            stat = path.stat()
            key, stamp = str(path.resolve()), [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
            known = self._known.get(key)
            if known is not None and known[:-1] == stamp:
                return str(known[-1])
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ValueError(f"cannot read {path} ({error.strerror}): check that it exists and may be read") from None
        if stat.st_size >= _REMEMBER_FROM_BYTES:
            self._known[key] = [*stamp, digest]
            with suppress(OSError):  # only a memory: a full or read-only disk is reported by whoever must write there
                write_sealed(self._memory, self._known)
        return digest
