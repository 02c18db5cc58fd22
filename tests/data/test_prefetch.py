"""Order, errors and the end of the background thread."""

import threading
import time

import pytest

from data.prefetch import Prefetcher


def test_order_and_end() -> None:
    with Prefetcher(lambda i: i * i, range(20)) as squares:
        assert list(squares) == [(i, i * i) for i in range(20)]
        assert list(squares) == []


def test_works_ahead_up_to_its_depth() -> None:
    made: list[int] = []
    with Prefetcher(made.append, range(20), depth=3) as items:
        next(iter(items))
        time.sleep(0.3)
        assert len(made) == 5  # one taken, three waiting, one in hand


def test_error_comes_at_its_place() -> None:
    def make(i: int) -> int:
        if i == 2:
            raise ValueError("document 2 is all zeros")
        return i

    with Prefetcher(make, range(9)) as items:
        iterator = iter(items)
        assert [next(iterator), next(iterator)] == [(0, 0), (1, 1)]
        with pytest.raises(ValueError, match="document 2"):
            next(iterator)


def test_leaving_early_ends_the_thread() -> None:
    before = threading.active_count()
    with Prefetcher(lambda i: i, iter(int, 1)) as items:  # without end
        next(iter(items))
    assert threading.active_count() == before
