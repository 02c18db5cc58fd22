"""What became of a job: a file of one JSON line per event, in the run folder. Standard library only.

    submitted  job, key, submission
    start      job, mark, node        written by the job itself; mark: how far the run had got
    end        job, mark, code, action (done, requeue, failed, ended), reason

A start without an end was cut off from outside: the node failed, or SLURM requeued the job by itself.
"""

import datetime
import json
from pathlib import Path
from typing import Any


def append(path: Path, event: str, **values: Any) -> None:
    """Add one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")  # noqa: UP017 (host pythons may be old)
    with open(path, "a") as file:
        file.write(json.dumps({"event": event, "date": date, **values}) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines."""
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
    """How far a run has got: its newest checkpoint, and the bytes of its evaluations."""
    checkpoints = sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    size = 0
    for path in (folder / "evals").rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # renamed just now
    return f"{checkpoints[-1] if checkpoints else 'step-0'}, {size} bytes of evaluations"


def fruitless_starts(events: list[dict[str, Any]], job: str, mark: str) -> int:
    """How many of the job's latest starts, in a row, have not got beyond `mark`."""
    starts = [event for event in events if event["event"] == "start" and event["job"] == job]
    count = 0
    for event in reversed(starts):
        if event["mark"] != mark:
            break
        count += 1
    return count
