"""Progress of one run for a person: a live bar on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 30.0


class RunProgress:
    """`update(row)` takes the row that goes to metrics.jsonl."""

    def __init__(self, name: str, num_steps: int, first_step: int, quiet: bool = False):
        self._name, self._num_steps, self._quiet = name, num_steps, quiet
        self._last_line = 0.0
        self._bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                transient=False,
            )
            self._task = self._bar.add_task(name, total=num_steps, completed=first_step, numbers="")
            self._bar.start()

    def update(self, row: dict[str, Any]) -> None:
        mfu = "" if row["mfu_dense"] is None else f"  MFU {100 * row['mfu_dense']:.0f}%"
        if row["mfu"] != row["mfu_dense"]:
            mfu += " (dense-equivalent)"
        numbers = f"loss {row['loss']:.3f}  {row['tokens_per_s']:,.0f} tokens/s{mfu}"
        if self._bar is not None:
            self._bar.update(self._task, completed=row["step"], numbers=numbers)
        elif not self._quiet and (row["step"] == self._num_steps or time.monotonic() - self._last_line > LINE_EVERY_S):
            self._last_line = time.monotonic()
            left = (self._num_steps - row["step"]) * row["tokens"] / row["step"] / max(row["tokens_per_s"], 1e-9)
            print(
                f"{self._name}  step {row['step']}/{self._num_steps}  {numbers}  {left / 60:.0f} min left",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
