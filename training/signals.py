"""Turn signals into a request that the loop honours at the next step: save, then leave with a code that says why."""

import signal
import time
from types import FrameType

EXIT_FINISHED = 0
EXIT_ERROR = 2
EXIT_NOT_MET = 3  # all done, and the numbers are not those that are stored
EXIT_INTERRUPTED = 130
EXIT_REQUEUE = 75  # EX_TEMPFAIL: saved, start me again


class StopRequest:
    """Wish to stop, set by SIGINT, SIGTERM, SIGUSR2 or the wall clock. A second SIGINT stops at once, without saving."""

    def __init__(self, max_hours: float | None = None):
        self.exit_code: int | None = None
        self.reason = ""
        self._began = time.monotonic()
        self._deadline = None if max_hours is None else self._began + 3600 * max_hours
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.exit_code is not None:
            raise KeyboardInterrupt
        self.exit_code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_REQUEUE
        self.reason = signal.Signals(number).name

    @property
    def wall_s(self) -> float:
        """Seconds since this was made, at the start of a training."""
        return time.monotonic() - self._began

    @property
    def requested(self) -> bool:
        if self.exit_code is None and self._deadline is not None and time.monotonic() > self._deadline:
            self.exit_code, self.reason = EXIT_REQUEUE, "the wall-clock limit"
        return self.exit_code is not None
