"""Hours of all submitted jobs: requested, used, lost and queued, by kind of job. Computed from records and journals alone, so
SLURM's accounting is not needed."""

import datetime
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import zip_longest

from rich.table import Table

from experiments import restarts
from slurm.job import Job, Submission


@dataclass
class Hours:
    """Sums over jobs that have started, in GPU-hours, or without GPUs in process-hours; `queued` in job-hours."""

    jobs: int = 0
    asked: float = 0.0
    used: float = 0.0
    lost: float = 0.0
    queued: float = 0.0


def hours(submissions: Iterable[Submission], about: Collection[str], now: datetime.datetime) -> dict[str, Hours]:
    """Sum up the jobs of the runs, corpora and artefacts in `about`, by kind."""
    found: defaultdict[str, Hours] = defaultdict(Hours)
    for submission in (submission for submission in submissions if not submission.withdrawn):
        sent = datetime.datetime.strptime(submission.path.stem[:15], "%Y%m%d-%H%M%S").astimezone()
        ids = submission.job_ids()
        for key, job_id in ((key, job_id) for key, job_id in ids.items() if submission.jobs[key].about in about):
            needs = [event for need in submission.jobs[key].needs if need in ids
                     for event in _events(submission.jobs[need], ids[need])]  # fmt: skip
            ready = max([sent, *(_date(event) for event in needs if event["event"] == "end")])
            _add(found[key.split(":")[0]], submission.jobs[key], _events(submission.jobs[key], job_id), ready, now)
    return {kind: total for kind, total in found.items() if total.jobs}


def _add(total: Hours, job: Job, events: list[dict], ready: datetime.datetime, now: datetime.datetime) -> None:
    """Add one job that could start at `ready`. A start without an end was cut off before the next one, or is still running."""
    width, limit = job.resources.gpus or job.resources.tasks, job.resources.minutes / 60
    total.jobs += any(event["event"] == "start" for event in events)
    for start, after in zip_longest(events, events[1:]):
        if start["event"] != "start":
            ready = _date(start)
            continue
        used = min(_between(_date(start), now if after is None else _date(after)), limit)
        total.queued += _between(ready, _date(start))
        total.asked += width * limit
        total.used += width * used
        if after is not None and after.get("action") != "done" and after["mark"] == start["mark"]:
            total.lost += width * used
        ready = _date(start) + datetime.timedelta(hours=used)


def _events(job: Job, job_id: str) -> list[dict]:
    events = [event for event in restarts.read(job.journal) if event.get("job") == job_id]
    return [event for event in events if event["event"] in ("start", "end") and "mark" in event]


def _date(event: dict) -> datetime.datetime:
    return datetime.datetime.fromisoformat(event["date"])


def _between(first: datetime.datetime, second: datetime.datetime) -> float:
    return max(0.0, (second - first).total_seconds() / 3600)


def table(found: dict[str, Hours]) -> Table:
    shown = Table("kind", "jobs", "requested", "used", "lost", "queued", box=None, pad_edge=False)
    for kind, total in found.items():
        shown.add_row(
            kind, str(total.jobs), *(f"{value:.1f} h" for value in (total.asked, total.used, total.lost, total.queued))
        )
    return shown
