"""Watchdog that ends a process whose steps have stopped coming (a hung collective, a dead peer), so that it can be started
again."""

import faulthandler
import os
import sys
import threading
import time

from training.signals import EXIT_REQUEUE


class Watchdog:
    """Limit to the time between two steps. Call `alive()` once a step; after `minutes` without a call it prints the stacks and
    exits with EXIT_REQUEUE."""

    def __init__(self, minutes: float):
        self._limit = 60 * minutes
        self._last = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()

    def alive(self) -> None:
        self._last = time.monotonic()

    def _watch(self) -> None:
        while not self._done.wait(min(self._limit / 10, 10)):
            silent = time.monotonic() - self._last
            if silent > self._limit:
                print(
                    f"no step finished for {silent:.0f} s; stacks follow, then this process exits to be requeued",
                    file=sys.stderr,
                )
                faulthandler.dump_traceback(file=sys.stderr)
                sys.stderr.flush()
                os._exit(EXIT_REQUEUE)
