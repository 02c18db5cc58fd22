"""The state of everything that was submitted, one row per run, from the records, the journals and SLURM's queue."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from experiments import restarts
from slurm import client
from slurm.client import QueuedJob
from slurm.epilogue import NEVER_BEGAN
from slurm.job import Job, Submission
from training.run_folder import RunFolder

NEEDS = "needs "
OPEN = ("running", "waiting", "pending", "requeued", "held", "hidden")
MORE = {"timeout": "time", "out of memory": "memory"}
BROKEN = ("failed", "cancelled", "lost")
ENDS = ("done", *BROKEN)
STYLES = {"done": "green", "running": "cyan", "held": "yellow", "hidden": "yellow", **dict.fromkeys(BROKEN, "red")}


@dataclass(frozen=True)
class JobState:
    """A job and its state, under the newest `id` that SLURM gave it.

    `state`: one of ENDS or OPEN; waiting: for other jobs; hidden: a colleague's, which SLURM does not show. `error`: what is
    wrong now; `restarted`: the reason of the last restart; `shell_log`: the batch script's log, if the task never began.
    """

    job: Job
    id: str
    user: str
    state: str
    where: str = ""
    restarts: int = 0
    error: str = ""
    restarted: str = ""
    shell_log: Path | None = None


Newest = dict[str, tuple[Submission, str]]


def job_states(
    submissions: Iterable[Submission], queue: Mapping[str, QueuedJob], unseen: Collection[str] = ()
) -> list[JobState]:
    """Return the states of all jobs ever submitted, in order, by their newest ids. `unseen`: users whose jobs SLURM hides."""
    newest: Newest = {}
    for submission in submissions:
        if not submission.withdrawn:
            for key, job_id in submission.job_ids().items():
                newest.pop(key, None)
                newest[key] = (submission, job_id)
    newest = _without_superseded(newest)
    accounted = client.accounted(job_id for _, job_id in newest.values() if job_id not in queue)
    found: dict[str, JobState] = {}
    for key, (submission, job_id) in newest.items():
        job, said = submission.jobs[key], accounted.get(job_id, "")
        if submission.user in unseen and not _made(job) and not restarts.has_ended(job.journal, job_id):
            found[key] = JobState(job, job_id, submission.user, "hidden", error="SLURM does not show others' jobs")
        else:
            found[key] = _state(submission, job, job_id, queue.get(job_id), said, found)
    return list(found.values())


def _without_superseded(newest: Newest) -> Newest:
    """Drop drawings for which there is a later one of the same artefact, and evaluations whose rows later jobs make."""
    kept: Newest = {}
    made: set[Path | str] = set()
    for key, (submission, job_id) in reversed(newest.items()):
        job = submission.jobs[key]
        makes: set[Path | str] = {job.about} if job.kind == "draw" else set(job.makes)
        left = makes - made
        if left == makes or not all(Path(path).exists() for path in left):
            kept[key] = (submission, job_id)
        made |= makes
    return dict(reversed(kept.items()))


def _state(
    submission: Submission, job: Job, job_id: str, queued: QueuedJob | None, accounted: str, others: Mapping[str, JobState]
) -> JobState:
    events = [event for event in restarts.read(job.journal) if event.get("job") == job_id]
    starts, ends = ([event for event in events if event["event"] == kind] for kind in ("start", "end"))
    restarted = [end["reason"] for end in ends if end["action"] == "again" and end["code"] != restarts.REQUEUE]
    excluded = dict.fromkeys(event["node"] for event in events if event["event"] == "excluded")
    error = where = ""
    if queued is not None and queued.active:
        state, where, error = _queued_state(queued, len(starts))
        if state == "requeued" and ends and ends[-1]["code"] != restarts.REQUEUE:
            error = ends[-1]["reason"]
    elif (ends and ends[-1]["action"] == "done") or _made(job):
        state = "done"
        broken = [others[need].job.about for need in job.needs if need in others and others[need].state in BROKEN]
        error = f"without {', '.join(broken)}, whose evaluation is missing" if broken else ""
    else:
        blocking = [others[need] for need in job.needs if need in others and others[need].state in ("failed", "cancelled")]
        said = (queued.state if queued is not None else accounted).lower().replace("_", " ")
        state, error = _ended_state(ends, said, blocking if job.kind != "draw" else [])
        error += "; `python -m slurm resubmit` resumes it" if said == "preempted" else ""
        if job.kind == "evaluate" and said in MORE:
            error += f"; `python -m slurm resubmit` asks for 1.5 times the {MORE[said]}"
        if state == "lost":
            error = f"SLURM has forgotten job {job_id}; its end was not recorded: cancelled before it began, or its node failed"
    # If the task never began, there is only the batch script's log.
    begun = bool(starts) and starts[-1]["mark"] != NEVER_BEGAN
    shell_log = None if begun else submission.shell_log(job.key)
    if state == "failed" and not starts and shell_log is not None:
        error += f": {restarts.last_words(shell_log)}" if shell_log.exists() else f": its node cannot write {shell_log}"
    count, last = max(len(starts) - 1, 0), restarted[-1] if restarted else ""
    last += f"; not on {', '.join(excluded)} again" if excluded else ""
    return JobState(job, job_id, submission.user, state, where, count, error, last, shell_log)


def _made(job: Job) -> bool:
    return bool(job.makes) and all(path.exists() for path in job.makes)


def _queued_state(queued: QueuedJob, starts: int) -> tuple[str, str, str]:
    """Return (state, node or reason for waiting, remedy) of a job that SLURM has in its queue."""
    if queued.held:
        return "held", "", f"held by SLURM ({queued.reason}): `scontrol release {queued.id}` releases it, or cancel it"
    if queued.state in ("PENDING", "REQUEUED"):
        if queued.reason == "DependencyNeverSatisfied":
            return "waiting", queued.reason, f"a job that it needs has failed: `scancel {queued.id}`, then resubmit"
        reason = "" if queued.reason in ("None", "Dependency") else queued.reason
        never = f"asks for what SLURM never grants ({reason}): `python -m slurm cancel`, fix the cluster file, then `run`"
        error = never if client.NEVER.fullmatch(reason) else ""
        return "requeued" if starts else "waiting" if queued.reason == "Dependency" else "pending", reason, error
    return "running", queued.nodes, ""


def _ended_state(ends: list[dict], said: str, blocking: list[JobState]) -> tuple[str, str]:
    """Return (state, reason) of a job that is no longer queued and did not finish."""
    last = ends[-1] if ends else None
    if last is not None and last["action"] == "failed":
        return "failed", last["reason"]
    if blocking and last is None:
        first = blocking[0]
        how = "was cancelled" if first.state == "cancelled" else "failed"
        said = f"{NEEDS}{first.job.name}, which {how}" + (f": {first.error}" if first.error else "")
        return "cancelled", first.error if first.error.startswith(NEEDS) else said  # name what failed, not those between
    cancelled = said.startswith("cancelled") or (last is not None and last["action"] in ("cancelled", "ended"))
    if not said and not cancelled:
        return "lost", ""
    after = f", after: {last['reason']}" if last is not None and last["reason"] and last["action"] == "again" else ""
    return "cancelled" if cancelled else "failed", f"SLURM says: {said}{after}" if said else (last or {}).get("reason", "")


def rows(states: Iterable[JobState]) -> list[list[JobState]]:
    """Group the jobs by run; corpora and drawings each stand alone."""
    found: dict[str, list[JobState]] = {}
    for state in states:
        found.setdefault(str(state.job.folder) if state.job.of_a_run else state.job.key, []).append(state)
    return list(found.values())


def now(members: list[JobState]) -> JobState:
    """Return the job that represents a run: one that is broken, else the next to be done, else the last."""
    matters = (BROKEN, ("held",), ("running",), OPEN)
    return next((member for states in matters for member in members if member.state in states), members[-1])


def table(found: list[list[JobState]]) -> Table:
    """Build a table of one line per run, with the job that represents it now; also the corpora and drawings."""
    table = Table(Column("what", no_wrap=True), "now", "state", "job", "node", "step", "tokens/s", "ETA", "restarts", "error",
                  box=None, pad_edge=False)  # fmt: skip
    for members in found:
        main, count = now(members), sum(state.restarts for state in members)
        step, speed, left = progress(main.job.folder) if main.job.of_a_run else ("", "", "")
        left = left if main.job.kind == "train" and main.state == "running" else ""
        why = next((state.restarted for state in members if state.restarted and state.state != "failed"), "")
        where = main.shell_log if main.error and main.state in ("failed", "requeued") else None
        state = f"[{STYLES.get(main.state, 'default')}]{main.state}[/]"
        job = main.id + (f" of {main.user}" if main.user != client.me() else "")
        restarted = f"{count}: {why}" if why and count else str(count)
        error = main.error + (f"; log: {where}" if where is not None else "")
        said = (job, main.where, step, speed, left, restarted, error)
        table.add_row(main.job.about, main.job.kind, state, *map(escape, said))
    return table


def summary(found: list[list[JobState]]) -> str:
    """Counts of the rows in each state, such as 12 done, 3 running."""
    counts = Counter(now(members).state for members in found)
    return ", ".join(f"{counts[state]} {state}" for state in (*ENDS, *OPEN) if counts[state])


def wide(console: Console) -> Console:
    """Return a wide console if the output is not a terminal, so that logs hold whole names."""
    return console if console.is_terminal else Console(file=console.file, width=240, highlight=False)


def progress(folder: Path) -> tuple[str, str, str]:
    """Step, tokens per second and time left of a training."""
    run = RunFolder(folder)
    if (row := run.last_row()) is None:
        return "", "", ""
    train = run.read_spec().train
    minutes = (train.train_tokens - row["tokens"]) / max(row["tokens_per_s"], 1e-9) / 60
    left = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
    return f"{row['step']}/{train.num_steps}", f"{row['tokens_per_s']:,.0f}", left
