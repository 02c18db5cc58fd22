"""Writing a file so that a reader sees the old one or the whole new one. Standard library only."""

import os
import secrets
import tempfile
from pathlib import Path


def write_atomic(path: Path, body: bytes | str) -> None:
    """Write through a temporary name in the same folder, flushed to disk, then renamed: never a half-written file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
        with os.fdopen(handle, "wb") as file:
            file.write(body.encode() if isinstance(body, str) else body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # of a write, which does not know where it goes
            error.filename = str(path)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_writable(folder: Path, name: str, remedy: str) -> None:
    """Raise ValueError where no file can be made in a folder, which is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"{name} {folder} cannot be written: {error.strerror}; {remedy}.") from None
