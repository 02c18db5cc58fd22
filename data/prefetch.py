"""Batches made ahead of time on one background thread."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key")


class Prefetcher(Generic[Key, Item]):
    """Iterator over (key, make(key)) with up to `depth` results waiting; use it in a `with` so that the thread ends with it.

    An exception in `make` comes out of the iteration at its place in the order.
    """

    def __init__(self, make: Callable[[Key], Item], keys: Iterable[Key], *, depth: int = 2) -> None:
        self._make, self._keys = make, iter(keys)
        self._pool = ThreadPoolExecutor(1, "prefetch")
        self._ahead = deque(self._pool.submit(self._next) for _ in range(depth + 1))

    def _next(self) -> tuple[Key, Item] | None:
        for key in self._keys:
            return key, self._make(key)
        return None

    def __iter__(self) -> Iterator[tuple[Key, Item]]:
        while (entry := self._ahead[0].result()) is not None:  # the end and an error stay first: they come again
            self._ahead.popleft()
            self._ahead.append(self._pool.submit(self._next))
            yield entry

    def close(self) -> None:
        """End the thread, after the batch it is making."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "Prefetcher[Key, Item]":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
