"""Progress of an evaluation: a bar on a terminal, plain lines in a log."""

import sys
import time
from types import TracebackType

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Counts `total` steps of `label` on stderr; `done` of them were finished before.

    On a terminal this is a rich bar. Otherwise a line at the end, and one every half minute before it.
    """

    def __init__(self, label: str, total: int, done: int = 0):
        self.label, self.total, self.done = label, total, done
        self._stream = sys.stderr  # this one, whatever a library's chatter is diverted to later
        self._start, self._start_done = time.monotonic(), done
        self._last_line = self._start
        self._bar = None
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (*Bar.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(file=self._stream), transient=True)
            self._task = self._bar.add_task(label, total=total, completed=done)

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def expect(self, steps: int) -> None:
        """More to do than was known at the start."""
        self.total += steps
        if self._bar is not None:
            self._bar.update(self._task, total=self.total)

    def advance(self, steps: int = 1) -> None:
        self.done += steps
        if self._bar is not None:
            self._bar.advance(self._task, steps)
        elif time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES and self.done < self.total:
            self._line()

    def _line(self) -> None:
        self._last_line = time.monotonic()
        seconds = self._last_line - self._start
        rest = seconds / max(1, self.done - self._start_done) * (self.total - self.done)
        end = f"about {rest:.0f} s left" if self.done < self.total else f"{seconds:.1f} s"
        print(f"{self.label}: {self.done}/{self.total}, {end}", file=self._stream, flush=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is None or self._bar is None:
            self._line()
