"""The state of every run of a plan: from SLURM's queue, from the files that its jobs have written, and from the journals of
their starts (experiments/restarts.py). What was never submitted is shown, too."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Column, Table

from experiments import restarts
from experiments.plan import Plan
from slurm.cluster import Cluster
from slurm.jobs import Job, folder
from slurm.submit import Queued
from training.run_folder import RunFolder

STYLES = {"done": "green", "running": "cyan", "failed": "red", "cancelled": "red", "stopped": "red"}
BROKEN = ("failed", "cancelled", "stopped")


@dataclass(frozen=True)
class State:
    """Of a job: `name` is done, SLURM's own words in lower case, or for jobs that are not in the queue one of BROKEN or "not
    submitted". `error`: what went wrong, and the log that says more."""

    name: str
    id: str = ""
    where: str = ""
    restarts: int = 0
    error: str = ""


def state(job: Job, cluster: Cluster, queue: Mapping[str, Queued]) -> State:
    """Return the state of a job that is not done."""
    events, queued = restarts.read(job.task.journal), queue.get(job.name)
    if queued is not None:
        starts, ends = _events(events, queued.id)
        last = ends[-1]["reason"] if ends and ends[-1]["action"] == "again" else ""
        where = queued.nodes or queued.reason
        return State(queued.state.lower(), queued.id, where, max(len(starts) - (queued.state == "RUNNING"), 0), last)
    own = folder(job, cluster)
    last_id = str(max((int(path.name.split("_")[0]) for path in own.glob("*_submitted.pkl")), default=0))
    if last_id == "0":
        return State("not submitted")
    starts, ends = _events(events, last_id)
    log = own / f"{last_id}_0_log.out"
    if ends and ends[-1]["action"] == "failed":
        words = f"{ends[-1]['reason']} {restarts.last_words(job.task.log)}".strip()
        return State("failed", last_id, "", len(starts) - 1, f"{words}; log: {job.task.log}")
    if starts:
        return State(
            "stopped", last_id, "", len(starts) - 1, f"by SLURM: cancelled, out of time, or its node failed; log: {log}"
        )
    if log.exists():
        return State("failed", last_id, "", 0, f"the task never began: {restarts.last_words(log)}; log: {log}")
    return State("cancelled", last_id, "", 0, "before it began, or because what it needs has failed")


def _events(events: list[dict], job_id: str) -> tuple[list[dict], list[dict]]:
    own = [event for event in events if event["job"] == job_id]
    return [event for event in own if event["event"] == "start"], [event for event in own if event["event"] == "end"]


Row = tuple[str, str, State, Path | None]


def rows(plan: Plan, found: Mapping[Job, State]) -> list[Row]:
    """Return (what, kind, state, run folder) of each run, corpus and figure of a plan, by the job that matters most now.
    `found`: the states of the jobs that are not done."""
    made: list[Row] = []
    for run in plan.runs.values():
        own = [(job.task.kind, state) for job, state in found.items() if job.task.run is run]
        kind, state = min(own, key=lambda each: _rank(each[1]), default=("", State("done")))
        made.append((run.spec.folder_name, kind, state, run.folder.path))
    others = {job.task.about: (job.task.kind, state) for job, state in found.items() if job.task.run is None}
    for about in dict.fromkeys((*others, *plan.drawings)):
        made.append((about, *others.get(about, ("draw", State("done"))), None))
    return made


def _rank(state: State) -> int:
    return 0 if state.name in BROKEN else 1 if state.name == "running" else 2


def table(rows: list[Row]) -> Table:
    """Build a table with one line per run, corpus and figure."""
    columns = ("now", "state", "job", "node or reason", "step", "tokens/s", "time left", "restarts", "error")
    made = Table(Column("what", no_wrap=True), *columns, box=None, pad_edge=False)
    for about, kind, now, path in rows:
        step, speed, left = progress(path) if path is not None else ("", "", "")
        left = left if (kind, now.name) == ("train", "running") else ""
        shown = f"[{STYLES.get(now.name, 'default')}]{now.name}[/]"
        said = (now.id, now.where, step, speed, left, str(now.restarts), now.error)
        made.add_row(about, kind, shown, *map(escape, said))
    return made


def progress(path: Path) -> tuple[str, str, str]:
    """Return the step, tokens per second and time left of a training."""
    run = RunFolder(path)
    if not path.exists() or (row := run.last_row()) is None:
        return "", "", ""
    train = run.read_spec().train
    minutes = (train.train_tokens - row["tokens"]) / max(row["tokens_per_s"], 1e-9) / 60
    left = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
    return f"{row['step']}/{train.num_steps}", f"{row['tokens_per_s']:,.0f}", left
