"""The end of every batch script: `python -m slurm.epilogue RECORD GROUP EXIT_CODE` decides whether the job starts again.

75 (saved, start me again) and crashes are requeued for as long as starts bring progress, and at most `max_restarts` times in a
row if they do not. 2 (an error to mend) and 130 (Ctrl-C) are final, and so is what SLURM itself has ended: a cancelled job
must not come back. Standard library only: in a containerised setup this runs on the host's python3.
"""

import json
import os
import signal
import sys
from pathlib import Path

from slurm import client, journal

FINISHED, ERROR, GIVEN_UP, REQUEUE, INTERRUPTED = 0, 2, 3, 75, 130
ALIVE = ("RUNNING", "TIMEOUT")


def decide(code: int, state: str, fruitless: int, max_restarts: int) -> tuple[str, str]:
    """(action, why) after a job in SLURM's `state` has ended with `code`, its `fruitless` latest starts without progress."""
    if code == FINISHED:
        return "done", ""
    if state not in ALIVE:
        return "ended", f"SLURM says {state.lower()}"
    if code in (ERROR, GIVEN_UP, INTERRUPTED):
        return "failed", {ERROR: "", GIVEN_UP: "", INTERRUPTED: "interrupted"}[code]
    why = "saved, to go on" if code == REQUEUE else exit_reason(code)
    if fruitless > max_restarts:
        return "failed", f"given up after {fruitless} starts without progress: {why}"
    return "requeue", why


def exit_reason(code: int) -> str:
    if code <= 128:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"exit code {code}"


def node_of(record: dict, group: int) -> dict:
    """The node that this job is, by the index of its array."""
    key = record["groups"][group]["keys"][int(os.environ.get("SLURM_ARRAY_TASK_ID") or 0)]
    return record["nodes"][key]


def main() -> int:
    record_file, group, code = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    record = json.loads(Path(record_file).read_text())
    node = node_of(record, group)
    job, journal_file = client.own_job_id(), Path(node["journal"])
    mark = journal.progress_mark(Path(node["folder"]))
    state = "RUNNING" if code == FINISHED else client.state(job)
    fruitless = journal.fruitless_starts(journal.read(journal_file), job, mark)
    action, reason = decide(code, state, fruitless, record["max_restarts"])
    if action == "failed":
        reason = ": ".join(part for part in (reason, _last_words(Path(node["log"]))) if part)
    # Written before the requeue, which kills this very script.
    journal.append(journal_file, "end", job=job, mark=mark, code=code, action=action, reason=reason)
    if action == "requeue":
        complaint = client.requeue(job)
        if complaint is not None:
            journal.append(journal_file, "end", job=job, mark=mark, code=code, action="failed", reason=complaint)
    return code


def _last_words(log: Path) -> str:
    try:
        text = log.read_text(errors="replace")[-4000:]
    except OSError:
        return "no log was written"
    errors = [line for line in text.splitlines() if line.startswith("error:") or "Error:" in line]
    return (errors[-1] if errors else client.last_line(text))[:300]


if __name__ == "__main__":
    sys.exit(main())
