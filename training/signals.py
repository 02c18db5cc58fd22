"""Reasons to end a training before its last step: signals and the wall-clock limit, which the loop obeys at the next step, and
a watchdog for hung steps. Exit codes tell them apart."""

import faulthandler
import os
import signal
import sys
import threading
import time
from types import FrameType

EXIT_FINISHED = 0
EXIT_CRASHED = 1
EXIT_ERROR = 2
EXIT_NOT_REPRODUCED = 3  # all done, but the numbers disagree with the stored ones
EXIT_INTERRUPTED = 130
EXIT_REQUEUE = 75  # EX_TEMPFAIL: saved, to be restarted


class StopRequest:
    """Request to stop, set by SIGINT, SIGTERM, SIGUSR2 or the wall-clock limit. A second SIGINT stops at once, unsaved."""

    def __init__(self, max_hours: float | None = None):
        self.exit_code: int | None = None
        self.reason = ""
        self._began = time.monotonic()
        self._limit_s = None if max_hours is None else 3600 * max_hours
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.exit_code is not None:
            raise KeyboardInterrupt
        self.exit_code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_REQUEUE
        self.reason = signal.Signals(number).name

    @property
    def wall_s(self) -> float:
        """Seconds since the start of the training, when this object was made."""
        return time.monotonic() - self._began

    @property
    def requested(self) -> bool:
        if self.exit_code is None and self._limit_s is not None and self.wall_s > self._limit_s:
            self.exit_code, self.reason = EXIT_REQUEUE, "the wall-clock limit"
        return self.exit_code is not None


class Watchdog:
    """Limit to the time between two steps (a hung collective, a dead peer). Call `alive()` once a step; after `minutes` without
    a call it prints the stacks and exits with EXIT_REQUEUE."""

    def __init__(self, minutes: float):
        self._limit_s, self._done = 60 * minutes, threading.Event()

    def __enter__(self) -> "Watchdog":
        self.alive()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()

    def alive(self) -> None:
        self._last = time.monotonic()

    def _watch(self) -> None:
        while not self._done.wait(min(self._limit_s / 10, 10)):
            silent = time.monotonic() - self._last
            if silent > self._limit_s:
                ending = "stacks follow, then this process exits to be requeued"
                print(f"no step finished for {silent:.0f} s; {ending}", file=sys.stderr)
                faulthandler.dump_traceback(file=sys.stderr)
                sys.stderr.flush()
                os._exit(EXIT_REQUEUE)
