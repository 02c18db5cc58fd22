"""Atomic writing of shared files, and locks for one process at a time. Standard library only."""

import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: Path, body: bytes | str) -> None:
    """Write a temporary file in the same folder, flush it to disk, then rename it: no reader ever sees a half-written file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # minus the umask
        with os.fdopen(handle, "wb") as file:
            file.write(body.encode() if isinstance(body, str) else body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # errors of write() do not name the file
            error.filename = str(path)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_writable(folder: Path, name: str, remedy: str) -> None:
    """Create a folder if it is missing, and raise ValueError if no file can be created in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"{name} {folder} cannot be written: {error.strerror}; {remedy}.") from None


@contextmanager
def alone(lock: Path, waits: Callable[[], object], *, needed: bool = True) -> Iterator[None]:
    """Hold a lock file; the system releases it when this process ends, however it ends. `waits` is called once if another
    process holds the lock. Unless `needed`, a file system without locks is accepted."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)  # so that other users can lock it, too, if the umask allows
    with open(handle):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            if needed:
                raise
        yield
