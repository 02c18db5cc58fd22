"""Writing of files that others read and write too: whole or not at all, and one process at a time. Standard library only."""

import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def alone(lock: Path, waits: Callable[[], object], *, needed: bool = True) -> Iterator[None]:
    """Hold a lock file for this process; the system lets go of it when the process ends, however it ends. `waits` is called
    once where another process holds it. Without `needed`, a file system that knows no locks is passed over."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)  # a colleague's, too, where the umask allows it
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
