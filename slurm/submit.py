"""`python -m slurm run`: submit what is not done, queued or running; `--dry-run` only shows it.

A job's name is its identity. SLURM is asked for the names of this user's jobs, and what has none is submitted, in order, until
SLURM refuses a job. Nothing else is kept: saying the command again submits the rest, and nothing twice."""

import contextlib
import math
import os
import shlex
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import clean_env

from experiments.execute import fetch
from experiments.graph import plans_dir
from experiments.overview import uncut
from experiments.plan import KnownCorpus, Plan, make_plan, write_specs
from experiments.request import Request
from results.atomic import alone, check_writable
from slurm.cluster import Cluster
from slurm.jobs import Job, attempt, dependency, executor, jobs
from slurm.snapshot import snapshot
from training.signals import EXIT_REQUEUE

ENDING = "COMPLETING"
AGAIN = "say the command again"


@dataclass(frozen=True)
class Queued:
    """A job in SLURM's queue."""

    id: str
    state: str
    reason: str
    nodes: str
    name: str

    @property
    def family(self) -> str:
        return self.name.rpartition(".")[0]


def ask(*command: str) -> str:
    """Return the output of one of SLURM's commands. Raises ValueError with SLURM's words if it fails."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SCANCEL_"))}
    try:
        return subprocess.run(command, env=own, capture_output=True, text=True, check=True, timeout=120).stdout
    except FileNotFoundError:
        raise ValueError(f"there is no {command[0]} here: say this on the cluster's login node.") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{command[0]} does not answer; try again later.") from None
    except subprocess.CalledProcessError as error:
        raise ValueError(f"{command[0]}: {error.stderr.strip()}; {AGAIN} when SLURM answers.") from None


def queue() -> dict[str, Queued]:
    """Return this user's jobs that have not ended, by name."""
    lines = ask("squeue", "--me", "--noheader", "--format=%i|%T|%r|%N|%j").splitlines()
    found = (Queued(*line.split("|", 4)) for line in lines if line.count("|") >= 4)
    return {job.name: job for job in found if job.reason != "DependencyNeverSatisfied"}  # about to be cancelled


def planned(request: Request, cluster: Cluster, *, rehearsal: bool = False) -> Plan:
    """Plan a request for the machines of a cluster, with absolute paths. Raises ValueError for another --device than theirs."""
    if request.execution.device not in ("auto", cluster.device):
        raise ValueError(
            f"--device {request.execution.device}: gpus_per_node of the cluster file says where jobs run; leave it out."
        )
    places = {name: getattr(request, name).absolute() for name in ("results_dir", "corpora_dir")}
    given: dict[str, Any] = {name: path.absolute() for name, path in vars(request.user_data).items() if isinstance(path, Path)}
    beside = request.beside and request.beside.absolute()
    whole = replace(request, **places, beside=beside, user_data=replace(request.user_data, **given))
    return make_plan(whole.on(cluster.device), machine=cluster.machine, rehearsal=rehearsal)


def submit(plan: Plan, cluster: Cluster, console: Console) -> int:
    """Submit the jobs of `plan` that are neither done nor in the queue, and return at once: 0, or 75 if SLURM refused one."""
    check_writable(cluster.scratch, "scratch", "in the cluster file, name a folder that all nodes see")
    with _only_submitter(plan, console):
        there, todo = queue(), jobs(plan, cluster)
        ending = [job.name for job in todo if job.name in there and there[job.name].state == ENDING]
        if ending:
            console.print(f"{len(ending)} jobs are just ending, {ending[0]} for one: {AGAIN} in a minute")
            return EXIT_REQUEUE
        if not todo:
            console.print("nothing to submit: all is done")
            return 0
        check_writable(plan.request.results_dir, "--results-dir", "choose another")
        fetch(plan, console)
        write_specs(plan)
        code = snapshot(cluster.scratch / "snapshots")
        ids, new, refused = dict[str, str](), set[str](), None
        for job in todo:
            if job.name in there and not _outdated(job, there[job.name], new):
                ids[job.task.key] = there[job.name].id
                continue
            others = [other.id for other in there.values() if other.family == job.family and other.name != job.name]
            try:
                ids[job.task.key] = _send(job, cluster, code, dependency(job, ids, others))
            except (FailedJobError, FailedSubmissionError):
                refused = job
                break
            new.add(job.task.key)
    uncut(console).print(overview(todo, ids))
    console.print(
        f"submitted {len(new)} jobs, {len(ids) - len(new)} are queued or running, {len(todo) - len(ids)} are to be submitted"
    )
    if refused is not None:
        console.print(
            f"[yellow]SLURM refused {refused.task.name}[/] (its words are above): {AGAIN} later, or with a mended cluster file"
        )
    return 0 if refused is None else EXIT_REQUEUE


def _outdated(job: Job, queued: Queued, new: set[str]) -> bool:
    """Cancel a drawing that waits for its old evaluations while new ones are submitted, and return whether that was so."""
    outdated = job.task.kind == "draw" and queued.state == "PENDING" and not new.isdisjoint(job.task.needs)
    if outdated:
        ask("scancel", queued.id)
    return outdated


def _send(job: Job, cluster: Cluster, code: Path, waits_for: str) -> str:
    """Submit a job and return SLURM's id. Variables of this shell that would override the script's options are left out."""
    kept = {name: os.environ[name] for name in ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT") if name in os.environ}
    with clean_env():
        os.environ.update(kept)
        return executor(job, cluster, code, waits_for).submit(attempt(job, cluster)).job_id


@contextlib.contextmanager
def _only_submitter(plan: Plan, console: Console) -> Iterator[None]:
    """Hold the lock for submitting from a runs folder; a second process waits, and then sees the first one's jobs."""
    check_writable(plans_dir(plan), "--results-dir", "choose another")
    waits = partial(console.print, "another shell is submitting to the same runs; waiting for it ...")
    with alone(plans_dir(plan) / ".lock", waits):
        yield


def rehearse(plan: Plan, cluster: Cluster, console: Console, scripts: bool) -> int:
    """Print the table of jobs, their cost and, on request, their scripts. Needs no SLURM, writes nothing."""
    todo = jobs(plan, cluster)
    ids = {job.task.key: f"JOB{number}" for number, job in enumerate(todo, 1)}
    uncut(console).print(overview(todo, ids))
    hours, training = (sum(job.gpu_hours for job in some) for some in (todo, [job for job in todo if job.task.kind == "train"]))
    at = f"at {cluster.mfu:.0%} of {cluster.gpu_tflops or 0:,.0f} TFLOP/s"
    cost = f"{hours:,.0f} GPU-hours ({training:,.0f} of training) {at}" if cluster.gpus_per_node else "no GPUs"
    console.print(f"{len(todo)} jobs; {cost}; nothing was submitted" + ("" if scripts else "; --scripts prints the scripts"))
    for corpus in (each for each in plan.corpora if isinstance(each, KnownCorpus) and each.spec.fingerprint == "absent"):
        console.print(f"[yellow]note:[/] {escape(corpus.note)}")
    for job in todo if scripts else ():
        console.rule(f"{ids[job.task.key]}: python -m {job.task.module} {shlex.join(job.task.args)}", align="left")
        made = executor(job, cluster, cluster.scratch / "snapshots" / "DIGEST", dependency(job, ids, []))
        console.print(made.script(), markup=False, soft_wrap=True)
    return 0


def overview(todo: list[Job], ids: Mapping[str, str]) -> Table:
    """Build a table of one line per run, with its jobs and the starts that a long training needs, and one per other job."""
    table = Table("what", "jobs", "nodes x tasks", "GPUs", "hours", "GPU-hours", box=None, pad_edge=False)
    rows: defaultdict[str, list[Job]] = defaultdict(list)
    for job in todo:
        rows[job.task.about].append(job)
    for about, members in rows.items():
        first, hours = members[0], members[0].minutes / 60
        starts = math.ceil(first.gpu_hours / (first.gpus or 1) / hours - 0.01)
        shown = ", ".join(f"{job.task.kind} {ids.get(job.task.key, 'not submitted')}" for job in members)
        long = f" x {starts}" if starts > 1 else ""
        cost = f"{sum(job.gpu_hours for job in members):,.1f}" if any(job.gpus for job in members) else "-"
        table.add_row(
            about, shown, f"{first.nodes} x {first.tasks_per_node}", str(first.gpus or "-"), f"{hours:.1f}{long}", cost
        )
    return table
