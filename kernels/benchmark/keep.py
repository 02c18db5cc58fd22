"""Measuring for minutes without losing what is there: rows are kept group by group, and no provider is waited for without
end."""

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from results.measured import add

Row = dict[str, Any]
_began = time.monotonic()


class TooLong(Exception):
    """Raised at the limit; no OSError like TimeoutError, which compilers and caches catch."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TooLong after so many seconds, as soon as Python runs again. Gradients are computed by the calling thread: no other
    hears of it."""

    def stop(*_: object) -> None:
        raise TooLong(f"more than {seconds} s to compile, tune and time")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def keep(kind: str, rows: Iterable[Row], label: str, code: str, folder: Path) -> None:
    """Add rows as one measuring: as many as there are where it is cut short by an error, Ctrl-C or SIGTERM."""
    terminated = signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = []
    try:
        for row in rows:
            found.append(row)
    finally:
        signal.signal(signal.SIGTERM, terminated)
        if found:
            add(kind, found, torch.cuda.get_device_name(), code=code, folder=folder)
        print(f"[{time.monotonic() - _began:.0f} s] {label}: {len(found)} rows kept", flush=True)
