"""Progress of one task for a person: a live bar on a terminal, elsewhere a line every half minute."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINE_EVERY_S = 30.0


class Progress:
    """Progress over `total` steps of `label` on stderr, `done` of them from before. `quiet`: prints nothing."""

    def __init__(self, label: str, total: int, done: int = 0, quiet: bool = False):
        self.label, self.total, self.done, self.quiet = label, total, done, quiet
        self._numbers = ""
        self._stream = sys.stderr  # kept, as sys.stderr may be redirected later
        self._start, self._start_done = time.monotonic(), done
        self._last_line = self._start
        counts = (MofNCompleteColumn(), TextColumn("{task.fields[numbers]}"), TimeElapsedColumn(), TimeRemainingColumn())
        live, console = not quiet and self._stream.isatty(), Console(file=self._stream)
        self._bar = Bar(*Bar.get_default_columns()[:2], *counts, console=console, transient=True, disable=not live)
        self._task = self._bar.add_task(label, total=total, completed=done, numbers="")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def expect(self, steps: int) -> None:
        """Add steps that were not known at the start."""
        self.total += steps
        self._bar.update(self._task, total=self.total)

    def advance(self, steps: int = 1, numbers: str = "") -> None:
        """Count steps. `numbers`: text to show beside the count."""
        self.done += steps
        self._numbers = numbers
        self._bar.update(self._task, advance=steps, numbers=numbers)
        if self._bar.disable and time.monotonic() - self._last_line > LINE_EVERY_S and self.done < self.total:
            self._line()

    def _line(self) -> None:
        if self.quiet:
            return
        self._last_line = time.monotonic()
        seconds = self._last_line - self._start
        rest = seconds / max(1, self.done - self._start_done) * (self.total - self.done)
        end = f"about {rest:.0f} s left" if self.done < self.total else f"{seconds:.1f} s"
        words = (f"{self.label}: {self.done}/{self.total}", self._numbers, end)
        print(*filter(None, words), sep=", ", file=self._stream, flush=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if kind is None or self._bar.disable:
            self._line()


def numbers(row: dict[str, Any]) -> str:
    """Format a row of metrics.jsonl for display: loss, speed, and on a GPU the MFU."""
    dense, executed = row["mfu_dense"], row["mfu"]
    mfu = "" if dense is None else f"  MFU {100 * dense:.0f}%"
    if executed != dense:
        mfu += " (dense-equivalent)" if executed is None else f" (dense-equivalent; executed {100 * executed:.0f}%)"
    return f"loss {row['loss']:.3f}  {row['tokens_per_s']:,.0f} tokens/s{mfu}"
