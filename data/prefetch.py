"""Items made ahead of time on one background thread."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
_END: Any = object()


class Prefetcher(Generic[Item]):
    """Iterator over `items` with up to `depth` of them waiting; use it in a `with` so that the thread ends with it.

    An exception while an item is made comes out of the iteration at its place in the order."""

    def __init__(self, items: Iterable[Item], *, depth: int = 2) -> None:
        self._items = iter(items)
        self._pool = ThreadPoolExecutor(1, "prefetch")
        self._ahead = deque(self._pool.submit(next, self._items, _END) for _ in range(depth + 1))

    def __iter__(self) -> Iterator[Item]:
        while (item := self._ahead[0].result()) is not _END:  # the end and an error stay first: they come again
            self._ahead.popleft()
            self._ahead.append(self._pool.submit(next, self._items, _END))
            yield item

    def close(self) -> None:
        """End the thread, after the item it is making."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "Prefetcher[Item]":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
