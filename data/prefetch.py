"""Items made ahead of time on one background thread."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
_END: Any = object()


class Prefetcher(Generic[Item]):
    """Iterator over `items` that makes up to `depth` of them ahead; use it in a `with` block, which ends the thread.

    An exception while an item is made is raised by the iteration in place of that item."""

    def __init__(self, items: Iterable[Item], *, depth: int = 2) -> None:
        self._items = iter(items)
        self._pool = ThreadPoolExecutor(1, "prefetch")
        self._ahead = deque(self._pool.submit(next, self._items, _END) for _ in range(depth + 1))

    def __iter__(self) -> Iterator[Item]:
        while (item := self._ahead[0].result()) is not _END:  # the end or an error stays first, to be raised again
            self._ahead.popleft()
            self._ahead.append(self._pool.submit(next, self._items, _END))
            yield item

    def close(self) -> None:
        """End the thread once the current item is made."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "Prefetcher[Item]":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
