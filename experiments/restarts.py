"""The rule by which ended tasks are restarted, on this machine and on SLURM.

After exit code 75 (saved, to be restarted) or a crash, a task is restarted as long as restarts make progress, and at most
`max_restarts` times in a row if they do not. 2 (an error that the user can fix) and 130 (Ctrl-C) are final.

The journal of a task is a file in its folder with one JSON line per event:

    start      job, mark, node        mark: how far the task had got
    end        job, mark, code, action (done, again, failed), reason

A start without an end was cut off from outside: the machine failed, or SLURM requeued the job on its own."""

import datetime
import json
import os
import signal
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

FINISHED, ERROR, GIVEN_UP, REQUEUE, BROKEN_NODE, INTERRUPTED = 0, 2, 3, 75, 76, 130
MAX_RESTARTS = 3


def append(path: Path, event: str, **values: Any) -> None:
    """Add one line to a journal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with open(path, "a") as file:
        file.write(json.dumps({"event": event, "date": date, **values}) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the events of a journal, without incomplete lines."""
    events = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):  # cut off in the middle of a write
            events.append(json.loads(line))
    return events


def note_start(journal: Path, job: str, folder: Path) -> None:
    """Record that a task starts on this machine. `folder`: where its progress is measured."""
    append(journal, "start", job=job, mark=progress_mark(folder), node=os.uname().nodename)


def note_end(journal: Path, job: str, folder: Path, code: int) -> tuple[str, str]:
    """Record that a task has ended with `code`, and return what to do with it: (action, why)."""
    mark = progress_mark(folder)
    action, reason = decide(code, fruitless_starts(read(journal), job, mark))
    append(journal, "end", job=job, mark=mark, code=code, action=action, reason=reason)
    return action, reason


def progress_mark(folder: Path) -> str:
    """Describe how far a run has got: its newest checkpoint, and the size of its evaluations."""
    checkpoint = max((path.name for path in (folder / "checkpoints").glob("step-*[0-9]")), default="step-0")
    size = 0
    for path in (folder / "evals").rglob("*"):
        with suppress(OSError):  # renamed just now
            size += path.stat().st_size if path.is_file() else 0
    return f"{checkpoint}, {size} bytes of evaluations"


def fruitless_starts(events: list[dict[str, Any]], job: str, mark: str) -> int:
    """Count how many of the job's latest starts, in a row, made no progress beyond `mark`."""
    starts = [event for event in events if event["event"] == "start" and event["job"] == job]
    return len(list(takewhile(lambda event: event["mark"] == mark, reversed(starts))))


def decide(code: int, fruitless: int, max_restarts: int = MAX_RESTARTS) -> tuple[str, str]:
    """Return (action, why) for a task that ended with `code` after `fruitless` starts in a row without progress."""
    if code == FINISHED:
        return "done", ""
    if code in (ERROR, GIVEN_UP, INTERRUPTED):
        return "failed", "interrupted" if code == INTERRUPTED else ""
    why = "saved, to go on" if code == REQUEUE else exit_reason(code)
    if fruitless > max_restarts:
        return "failed", f"given up after {fruitless} starts without progress: {why}"
    return "again", why


def exit_reason(code: int) -> str:
    """Say what an exit code means; signals are 128 + signal (from a shell) or -signal (from subprocess)."""
    if code == BROKEN_NODE:
        return "this node failed"
    try:
        return f"killed by {signal.Signals(-code if code < 0 else code - 128).name}"
    except ValueError:
        return f"exit code {code}"


def last_words(log: Path) -> str:
    """Return the line of a log that tells what went wrong."""
    try:
        text = log.read_text(errors="replace")[-4000:]
    except OSError:
        return "no log was written"
    # srun only says that a task has ended, slurmstepd (***) that a job has ended, and --- that a job has begun.
    told = ("srun:", "--- job ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(told) and "***" not in line]
    errors = [line for line in lines if line.startswith("error:") or "Error:" in line]
    return ((errors or lines or ["its log says nothing"])[-1])[:300]
