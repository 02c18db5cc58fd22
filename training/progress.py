"""Progress for a person: a live bar on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Counts `total` steps of `label` on stderr, `done` of which were finished before; `quiet` shows nothing. For a `with`: a
    line stands at its end, and one every half minute before it."""

    def __init__(self, label: str, total: int, done: int = 0, *, quiet: bool = False):
        self.label, self.total, self.done, self.quiet = label, total, done, quiet
        self._numbers = ""
        self._stream = sys.stderr  # this one, whatever a library's chatter is diverted to later
        self._start, self._start_done = time.monotonic(), done
        self._last_line = self._start
        self._bar: Bar | None = None
        if not quiet and self._stream.isatty():
            name, numbers = TextColumn("{task.description}"), TextColumn("{task.fields[numbers]}")
            columns = (name, BarColumn(), MofNCompleteColumn(), numbers, TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(file=self._stream), transient=True)
            self._task = self._bar.add_task(label, total=total, completed=done, numbers="")

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def expect(self, steps: int) -> None:
        """More to do than was known at the start."""
        self.total += steps
        if self._bar is not None:
            self._bar.update(self._task, total=self.total)

    def advance(self, steps: int = 1, numbers: str = "") -> None:
        """`numbers`: what there is to say of the last step."""
        self.done, self._numbers = self.done + steps, numbers
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, numbers=numbers)
        elif time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES and self.done < self.total:
            self._line()

    def _line(self) -> None:
        if self.quiet:
            return
        self._last_line = time.monotonic()
        seconds = self._last_line - self._start
        rest = seconds / max(1, self.done - self._start_done) * (self.total - self.done)
        left = f"about {rest:.0f} s left" if rest < 600 else f"about {rest / 60:.0f} min left"
        parts = (f"{self.done}/{self.total}", self._numbers, left if self.done < self.total else f"{seconds:.1f} s")
        print(f"{self.label}: {', '.join(filter(None, parts))}", file=self._stream, flush=True)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is None or self._bar is None:
            self._line()


def numbers_of(row: dict[str, Any]) -> str:
    """A row of metrics.jsonl in short."""
    mfu = "" if row["mfu_dense"] is None else f"  MFU {100 * row['mfu_dense']:.0f}%"
    if row["mfu"] != row["mfu_dense"]:
        mfu += " (dense-equivalent)"
    return f"loss {row['loss']:.3f}  {row['tokens_per_s']:,.0f} tokens/s{mfu}"
