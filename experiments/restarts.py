"""The rule by which a task that has ended is started again, everywhere. Standard library only: on clusters with containers
this runs on the host's python3.

75 (saved, start me again) and crashes are started again for as long as starts bring progress, and at most `max_restarts` times
in a row if they do not. 2 (an error to mend) and 130 (Ctrl-C) are final.

What became of a task is a file of one JSON line per event, in its folder:

    submitted  job, key, submission   (SLURM)
    start      job, mark, node        mark: how far the task had got
    end        job, mark, code, action (done, again, failed, ended), reason
    excluded   job, node              a node where it crashed and is not started again (SLURM)

A start without an end was cut off from outside: the machine failed, or SLURM requeued the job by itself.
"""

import datetime
import json
import signal
from pathlib import Path
from typing import Any

FINISHED, ERROR, GIVEN_UP, REQUEUE, INTERRUPTED = 0, 2, 3, 75, 130
MAX_RESTARTS = 3


def append(path: Path, event: str, **values: Any) -> None:
    """Add one line to a journal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")  # noqa: UP017 (host pythons may be old)
    with open(path, "a") as file:
        file.write(json.dumps({"event": event, "date": date, **values}) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a journal."""
    events = []
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue  # cut off in the middle of a write
    return events


def progress_mark(folder: Path) -> str:
    """Measure how far a run has got: its newest checkpoint, and the bytes of its evaluations."""
    checkpoints = sorted(path.name for path in (folder / "checkpoints").glob("step-*[0-9]"))
    size = 0
    for path in (folder / "evals").rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # renamed just now
    return f"{checkpoints[-1] if checkpoints else 'step-0'}, {size} bytes of evaluations"


def fruitless_starts(events: list[dict[str, Any]], job: str, mark: str) -> int:
    """Count how many of the job's latest starts, in a row, have not got beyond `mark`."""
    starts = [event for event in events if event["event"] == "start" and event["job"] == job]
    count = 0
    for event in reversed(starts):
        if event["mark"] != mark:
            break
        count += 1
    return count


def has_ended(path: Path, job: str) -> bool:
    """Tell whether the last that a journal says of a job is that it has ended for good."""
    events = [event for event in read(path) if event.get("job") == job]
    return bool(events) and events[-1]["event"] == "end" and events[-1]["action"] != "again"


def decide(code: int, fruitless: int, max_restarts: int = MAX_RESTARTS) -> tuple[str, str]:
    """(action, why) after a task has ended with `code`, its `fruitless` latest starts without progress."""
    if code == FINISHED:
        return "done", ""
    if code in (ERROR, GIVEN_UP, INTERRUPTED):
        return "failed", {ERROR: "", GIVEN_UP: "", INTERRUPTED: "interrupted"}[code]
    why = "saved, to go on" if code == REQUEUE else exit_reason(code)
    if fruitless > max_restarts:
        return "failed", f"given up after {fruitless} starts without progress: {why}"
    return "again", why


def exit_reason(code: int) -> str:
    """Say what an exit code means: of a shell (128 + signal) or of subprocess (-signal)."""
    number = -code if code < 0 else code - 128
    if number <= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"exit code {code}"


def last_words(log: Path) -> str:
    """The line of a log that says what was wrong."""
    try:
        text = log.read_text(errors="replace")[-4000:]
    except OSError:
        return "no log was written"
    # srun tells only that a task has ended, slurmstepd (***) that a job has, and --- that one began.
    told = ("srun:", "--- job ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(told) and "***" not in line]
    errors = [line for line in lines if line.startswith("error:") or "Error:" in line]
    return ((errors or lines or ["its log says nothing"])[-1])[:300]
