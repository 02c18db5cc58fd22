"""What has become of everything that was submitted: one row per run, from the records, the journals and SLURM's queue."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.local import last_row
from slurm import journal
from slurm.client import QueuedJob
from slurm.records import Submission
from training.run_folder import RunFolder

STYLES = {"done": "green", "running": "cyan", "failed": "red", "cancelled": "red", "lost": "red"}
NEEDS = "needs "
OPEN = ("running", "waiting", "pending", "requeued")


@dataclass(frozen=True)
class NodeState:
    """One node, by the newest submission that has it.

    `state`: done, running, pending, requeued, waiting (for other jobs), failed, cancelled or lost.
    """

    key: str
    node: dict[str, Any]
    job: str
    state: str
    where: str
    restarts: int
    error: str

    @property
    def kind(self) -> str:
        return self.node["kind"]


def node_states(submissions: list[Submission], queue: dict[str, QueuedJob]) -> list[NodeState]:
    """Every node that was ever submitted, in order; of one submitted again only its newest job."""
    newest: dict[str, tuple[dict[str, Any], str]] = {}
    for submission in submissions:
        ids = submission.job_ids()
        for key, node in submission.values["nodes"].items():
            if key in ids:
                newest.pop(key, None)
                newest[key] = (node, ids[key])
    found: dict[str, NodeState] = {}
    for key, (node, job) in newest.items():
        found[key] = _node_state(key, node, job, queue.get(job), found)
    return list(found.values())


def _node_state(key: str, node: dict[str, Any], job: str, queued: QueuedJob | None, others: dict[str, NodeState]) -> NodeState:
    events = [event for event in journal.read(Path(node["journal"])) if event.get("job") == job]
    starts = sum(event["event"] == "start" for event in events)
    ends = [event for event in events if event["event"] == "end"]
    # What SLURM ended, it can say better itself.
    reasons = [end["reason"] for end in ends if end["action"] in ("requeue", "failed") and end["code"] != 75]
    error, where = reasons[-1] if reasons else "", ""
    made = all(Path(path).exists() for path in node["makes"])
    if queued is not None and queued.active:
        where = queued.nodes
        state = _queued_state(queued, starts)
        if state in ("waiting", "pending", "requeued"):
            where = "" if queued.reason in ("None", "Dependency") else queued.reason
    elif (ends and ends[-1]["action"] == "done") or (made and node["kind"] != "draw"):
        state = "done"
    elif ends and ends[-1]["action"] == "failed":
        state = "failed"
    else:
        blocking = [others[need] for need in node["needs"] if need in others and others[need].state in ("failed", "cancelled")]
        ended = queued.state.lower().replace("_", " ") if queued is not None else ""
        state = "cancelled" if blocking or ended == "cancelled" else "failed" if ended else "lost"
        error = _why(blocking, ended, error, node)
    return NodeState(key, node, job, state, where, max(starts - 1, 0), error)


def _queued_state(queued: QueuedJob, starts: int) -> str:
    if queued.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"):
        return "requeued" if starts else "waiting" if queued.reason == "Dependency" else "pending"
    return "running"


def _why(blocking: list[NodeState], ended: str, error: str, node: dict[str, Any]) -> str:
    """Why a job that is no longer queued has not done its work."""
    if blocking:
        first = blocking[0]
        if first.error.startswith(NEEDS):
            return first.error  # name the job that failed, not those between
        cause = f": {first.error}" if first.error else ""
        return f"{NEEDS}{title(first)}, which {'was cancelled' if first.state == 'cancelled' else 'failed'}{cause}"
    if ended:
        return f"SLURM says: {ended}" + (f", after: {error}" if error else "")
    return error or f"SLURM does not know job any more and {Path(node['log']).name} tells no end"


def title(state: NodeState) -> str:
    return " ".join(state.key.split(":")[:2])


def table(states: list[NodeState]) -> Table:
    """One row a run, showing the job that matters now; then the corpora and drawings."""
    found = Table("what", "now", "state", "job", "node", "step", "tokens/s", "ETA", "restarts", "last error",
                  box=None, pad_edge=False)  # fmt: skip
    runs: dict[str, list[NodeState]] = {}
    for state in states:
        runs.setdefault(state.node["folder"] if state.kind in ("train", "evaluate") else state.key, []).append(state)
    for members in runs.values():
        _add_row(found, members)
    return found


def _add_row(found: Table, members: list[NodeState]) -> None:
    now = next((state for state in members if state.state != "done"), members[-1])
    is_run = now.kind in ("train", "evaluate")
    step, speed, left = progress(Path(now.node["folder"])) if is_run else ("", "", "")
    error = next((state.error for state in members if state.error), "")
    found.add_row(
        Path(now.node["folder"]).name if is_run else now.key.split(":")[1],
        now.kind,
        f"[{STYLES.get(now.state, 'default')}]{now.state}[/]",
        now.job,
        now.where,
        step,
        speed,
        left if now.kind == "train" and now.state == "running" else "",
        str(sum(state.restarts for state in members)),
        error,
    )


def wide(console: Console) -> Console:
    """The same output without a terminal's width where there is no terminal, so that logs hold whole names."""
    return console if console.is_terminal else Console(file=console.file, width=200, highlight=False)


def progress(folder: Path) -> tuple[str, str, str]:
    """Step, tokens per second and time left of a training."""
    run = RunFolder(folder)
    row = last_row(run)
    if row is None:
        return "", "", ""
    train = run.read_spec().train
    minutes = (train.train_tokens - row["tokens"]) / max(row["tokens_per_s"], 1e-9) / 60
    left = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
    return f"{row['step']}/{train.num_steps}", f"{row['tokens_per_s']:,.0f}", left
