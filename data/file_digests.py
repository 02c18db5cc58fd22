"""SHA-256 of files, remembered by path, size and modification time so that a second call reads nothing."""

import hashlib
import json
import os
from pathlib import Path

_REMEMBER_FROM_BYTES = 1 << 20  # hashing less costs less than looking it up


class FileDigests:
    """Digests with a `memory`: a JSON file that is written when possible and may be deleted at any time."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        try:
            self._known: dict[str, list[int | str]] = json.loads(memory.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._known = {}

    def sha256(self, path: Path) -> str:
        """Return the hex digest of the file's bytes. ValueError where it cannot be read."""
        try:
            stat = path.stat()
            key, stamp = str(path.resolve()), [stat.st_size, stat.st_mtime_ns]
            known = self._known.get(key)
            if known is not None and known[:2] == stamp:
                return str(known[2])
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ValueError(f"cannot read {path} ({error.strerror}): check that it exists and may be read") from None
        if stat.st_size >= _REMEMBER_FROM_BYTES:
            self._known[key] = [*stamp, digest]
            self._save()
        return digest

    def _save(self) -> None:
        temporary = self._memory.with_name(f"{self._memory.name}.{os.getpid()}")
        try:
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self._known), encoding="utf-8")
            temporary.replace(self._memory)
        except OSError:  # only a memory: a full or read-only disk is reported by whoever must write there
            temporary.unlink(missing_ok=True)
