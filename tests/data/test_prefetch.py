"""Order, errors and the end of the background thread."""

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from data.prefetch import Prefetcher


def test_order_and_end():
    with Prefetcher(i * i for i in range(20)) as squares:
        assert list(squares) == [i * i for i in range(20)]
        assert list(squares) == []


def test_works_ahead_up_to_its_depth():
    made: list[int] = []
    with Prefetcher((made.append(i) for i in range(20)), depth=3) as items:
        next(iter(items))
        time.sleep(0.3)
        assert len(made) == 5  # one taken, three waiting, one in hand


def test_error_comes_at_its_place():
    def made() -> Iterator[int]:
        yield from (0, 1)
        raise ValueError("document 2 is all zeros")

    with Prefetcher(made()) as items:
        iterator = iter(items)
        assert [next(iterator), next(iterator)] == [0, 1]
        for again in (iterator, iter(items)):
            with pytest.raises(ValueError, match="document 2"):
                next(again)


def test_leaving_early_ends_the_thread():
    before = threading.active_count()
    with Prefetcher(itertools.count()) as items:  # without end
        next(iter(items))
    assert threading.active_count() == before
