"""Writing a file so that a reader sees the old one or the whole new one. Standard library only."""

import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, body: bytes | str) -> None:
    """Write through a temporary name in the same folder, flushed to disk, then renamed: never a half-written file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body.encode() if isinstance(body, str) else body)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
