"""Batches made ahead of time on one background thread."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key")


class Prefetcher(Generic[Key, Item]):
    """Iterates over (key, make(key)) with up to `depth` results waiting; use it in a `with` so that the thread ends with it.

    An exception in `make` comes out of the iteration at its place in the order.
    """

    def __init__(self, make: Callable[[Key], Item], keys: Iterable[Key], *, depth: int = 2) -> None:
        self._queue: queue.Queue[tuple[Key, Item] | BaseException | None] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(make, iter(keys)), name="prefetch", daemon=True)
        self._thread.start()

    def _work(self, make: Callable[[Key], Item], keys: Iterator[Key]) -> None:
        try:
            for key in keys:
                if not self._put((key, make(key))):
                    return
            self._put(None)
        except BaseException as error:  # handed to the consumer, whatever it is
            self._put(error)

    def _put(self, entry: tuple[Key, Item] | BaseException | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(entry, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[tuple[Key, Item]]:
        while True:
            entry = self._queue.get()
            if entry is None or isinstance(entry, BaseException):
                self._thread.join()
                self._queue.put(entry)  # iterating again ends the same way
                if entry is not None:
                    raise entry
                return
            yield entry

    def close(self) -> None:
        """Ends the thread, after the batch it is making."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> "Prefetcher[Key, Item]":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
