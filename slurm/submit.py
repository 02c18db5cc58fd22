"""`python -m slurm run`: submit what is not done, queued or running; `--dry-run` only shows it.

All that jobs need is on disk before the first sbatch: specs, drawings, the code, and the record of the submission. sbatch is
then called once per batch (slurm/graph.py) and retried if needed: after a busy controller, a lost answer or a full queue the
job is still submitted, and only once. submitit's executor does not retry, knows a job only by sbatch's answer, has no aftercorr
between parts of arrays and asks sacct for states. If that is enough for you, slurm/callables.py has the tasks for it."""

import contextlib
import math
import os
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments import restarts
from experiments.execute import fetch
from experiments.graph import write_draw_specs
from experiments.plan import KnownCorpus, Plan, make_plan, write_specs
from experiments.request import Request
from results.atomic import alone, check_writable, write_atomic
from slurm import client, graph
from slurm.batch import script, task_python
from slurm.client import Forgotten, ForNow, NoArrays, QueuedJob, Refused, TooMany, Unclear
from slurm.cluster import CLUSTER, UNNAMED, Cluster
from slurm.job import Batch, Job, Submission, adopt, find, read_submissions, users
from slurm.snapshot import snapshot
from slurm.status import wide
from training.signals import EXIT_REQUEUE
from training.spec import Execution

REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
PAUSES_S = (1, 2, 4, 8, 15, 30)
UNCLEAR_TRIES = 6


def submit(plan: Plan, cluster: Cluster, console: Console, names: Collection[str] = ()) -> int:
    """Submit the missing part of `plan` and return at once: 0, or 75 if SLURM accepts no more jobs for now. `names`: parts of
    the names of runs, corpora or artefacts; only these are submitted, with the jobs that they need and the drawings of what
    they make. Raises ValueError if that fails; then nothing stays queued."""
    client.require_slurm()
    check_writable(cluster.scratch, "scratch", "in the cluster file, name a folder that all nodes see")
    folder = graph.submissions_dir(plan)
    with only_submitter(folder, console):
        before = read_submissions(folder)
        queue = client.queue(users(before))
        surplus = adopt(before, queue, save=True)
        client.cancel(surplus)
        active = active_jobs(before, {job_id: job for job_id, job in queue.items() if job.array not in surplus})
        jobs = _chosen(graph.jobs(plan, cluster, {key: job for key, (_, job) in active.items()}), names)
        older = _older(before, {job_id for job_id, _ in active.values()}, cluster)
        ended = _ended(before, queue)
        jobs = [graph.enlarged(job, ended, cluster) for job in jobs]
        _check_machine(jobs, cluster)
        _check_unseen(jobs, before, client.unseen(users(before), queue))
        if not jobs:
            busy = f"{len(active)} jobs are queued or running; `python -m slurm status` shows them" if active else "all is done"
            console.print(f"nothing to submit: {busy}{older}")
            return 0
        kinds = {job.kind for job in jobs}
        for name in (place for kind, place in (("prepare", "corpora"), ("draw", "results")) if kind in kinds):
            check_writable(getattr(plan.request, f"{name}_dir"), f"--{name}-dir", "choose another")
        fetch(plan, console)
        write_specs(plan)
        write_draw_specs(plan)
        sender = _Sender(new_submission(plan, cluster, jobs), cluster, snapshot(cluster.scratch / "snapshots"), console)
        sender.submission.save()
        _say_settings(cluster, console)
        killed = client.without_grace({cluster.settings(kind).partition for kind in kinds})
        if killed:
            console.print(f"[yellow]note:[/] preemption in {', '.join(killed)} leaves a job KillWait (30 s) to save and be "
                          "requeued; if that is too short, `python -m slurm resubmit` resumes it")  # fmt: skip
        sender.send_all(jobs, active)
    ids = sender.submission.job_ids()
    wide(console).print(_overview(jobs, ids))
    if active:
        console.print(f"{len(active)} jobs of earlier submissions are still queued or running{older}")
    shows = "`python -m slurm status` shows their state"
    console.print(f"submitted {len(ids)} jobs; code snapshot {sender.code.name}; {shows}")
    if sender.complaint:
        console.print(
            f"[yellow]{len(jobs) - len(ids)} jobs were not accepted[/]: {escape(sender.complaint)}; run the same command later"
        )
    return EXIT_REQUEUE if sender.complaint else 0


@contextlib.contextmanager
def only_submitter(folder: Path, console: Console) -> Iterator[None]:
    """Hold the lock for submitting into `folder`; a second process waits, and then sees the first one's jobs."""
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            waits = partial(console.print, "another shell is submitting to the same runs; waiting for it ...")
            held.enter_context(alone(folder / ".lock", waits))
        except OSError as error:
            raise ValueError(f"cannot write {folder}: {error.strerror}. Choose another --runs-dir.") from error
        yield


def active_jobs(submissions: Iterable[Submission], queue: dict[str, QueuedJob]) -> dict[str, tuple[str, Job]]:
    """Return the jobs that are queued or running: key -> (SLURM's id, job)."""
    found = ((key, job_id, item.jobs[key]) for item in submissions for key, job_id in item.job_ids().items())
    return {key: (job_id, job) for key, job_id, job in found if job_id in queue and queue[job_id].active}


def _older(submissions: Iterable[Submission], active: set[str], cluster: Cluster) -> str:
    """Return a note if some `active` jobs were submitted with another cluster file, else an empty string."""
    settings = CLUSTER.dump_python(cluster, mode="json")
    others = any(item.cluster != settings and active & {*item.job_ids().values()} for item in submissions)
    return ". They keep another cluster file's settings: `python -m slurm cancel` first, to submit with these" if others else ""


def _ended(submissions: Iterable[Submission], queue: dict[str, QueuedJob]) -> list[tuple[Job, str]]:
    """Return all submitted jobs, oldest first, with SLURM's state of each as far as it is known."""
    ids = [(job_id, item.jobs[key]) for item in submissions if not item.withdrawn for key, job_id in item.job_ids().items()]
    known = client.accounted(job_id for job_id, _ in ids if job_id not in queue)
    return [(job, queue[job_id].state if job_id in queue else known.get(job_id, "")) for job_id, job in ids]


def _chosen(jobs: list[Job], names: Collection[str]) -> list[Job]:
    keys = {job.key for job in jobs if not names or any(name in job.about for name in names)}
    for job in reversed(jobs):  # each comes after those that it needs
        keys |= set(job.needs) if job.key in keys and job.kind != "draw" else set()
    return [job for job in jobs if job.key in keys or (job.kind == "draw" and keys & set(job.needs))]


def _append(submission: Submission, batch: Batch, cluster: Cluster, code: Path, throttle: int | None) -> tuple[Path, str]:
    """Add a batch to a submission. Returns the path for its sbatch script, and the script."""
    if (limit := cluster.max_concurrent) is not None and batch.single and batch.kind != "draw":
        # Single jobs have no throttle: each waits for the end of the one `limit` places before it.
        alike = [each.id for each in submission.batches if each.single and each.id and each.kind == batch.kind]
        lane = f"afterany:{alike[-limit]}" if len(alike) >= limit else None
        batch = replace(batch, dependency=",".join(filter(None, (batch.dependency, lane))) or None)
    entry = len(submission.batches)
    stem = cluster.scratch / "jobs" / submission.path.stem / f"{entry:03d}-{batch.kind}"
    submission.batches.append(replace(batch, logs=f"{stem}-"))
    return stem.with_suffix(".sh"), script(submission, entry, cluster, code, throttle)


def _throttle(batch: Batch, whole: int, cluster: Cluster) -> int | None:
    """Return the share of `max_concurrent` of a batch that is one of those of `whole` jobs; at least one job."""
    return None if cluster.max_concurrent is None else max(1, cluster.max_concurrent * len(batch.keys) // whole)


class _Sender:
    """Sends the batches of one submission to SLURM. `complaint`: what SLURM said when it accepted no more. `troubled`: some
    call failed, so that an answer may have been lost. `done`: jobs that no other needs to wait for."""

    def __init__(self, submission: Submission, cluster: Cluster, code: Path, console: Console):
        self.submission, self.cluster, self.code, self.console = submission, cluster, code, console
        self.arrays, self.complaint, self.troubled, self.done = cluster.arrays, "", False, set[str]()

    def send_all(self, jobs: list[Job], active: dict[str, tuple[str, Job]]) -> None:
        """Submit all jobs, or as many as SLURM accepts for now; `active`: jobs queued or running, with their ids. After a
        refusal for good or Ctrl-C, what was submitted is cancelled again. Raises ValueError with SLURM's message."""
        group: list[Job] = []
        number = Counter(job.kind for job in jobs)
        try:
            for group in graph.groups(jobs, self.cluster):
                self._send(group, active, number[group[0].kind])
            if self.troubled:
                client.cancel(adopt([self.submission], client.queue(), save=True))
        except ForNow as error:
            self.complaint = str(error)
        except Refused as error:
            undone = self._withdraw()
            after = f" Submitted before it and cancelled again: {undone}." if undone else ""
            asked = _asked(group[0], self.cluster)
            raise ValueError(f"SLURM refused the job '{group[0].kind}': {error}. {asked}{after}") from None
        except BaseException:
            self._withdraw()
            raise

    def _send(self, jobs: list[Job], active: dict[str, tuple[str, Job]], whole: int) -> None:
        """Submit jobs of one of the groups of `whole` jobs: in halves if they exceed a limit, and one by one without arrays."""
        for batch in graph.batches(jobs, self._awaited(active), self.arrays):
            members = [self.submission.jobs[key] for key in batch.keys.values()]
            try:
                self._submit(batch, whole)
            except TooMany:
                if batch.single:
                    raise
                middle = (len(members) + 1) // 2
                for half in (members[:middle], members[middle:]):
                    self._send(half, active, whole)
            except NoArrays:
                self.arrays = False
                self._send(members, active, whole)
            except Forgotten as error:
                self._note_done(active)
                if graph.batches(members, self._awaited(active), self.arrays) == [batch]:
                    raise Refused(str(error)) from None
                self._send(members, active, whole)

    def _awaited(self, active: dict[str, tuple[str, Job]]) -> dict[str, str]:
        """Return SLURM's ids of the jobs that others may have to wait for."""
        ids = {key: job_id for key, (job_id, _) in active.items()} | self.submission.job_ids()
        return {key: job_id for key, job_id in ids.items() if key not in self.done}

    def _note_done(self, active: dict[str, tuple[str, Job]]) -> None:
        """Add to `done` the jobs that SLURM has forgotten and whose files are there."""
        queue, jobs = self._queue(), {key: job for key, (_, job) in active.items()} | self.submission.jobs
        gone = [key for key, job_id in self._awaited(active).items() if job_id not in queue and jobs[key].makes]
        self.done |= {key for key in gone if all(path.exists() for path in jobs[key].makes)}

    def _submit(self, batch: Batch, whole: int) -> None:
        entry = len(self.submission.batches)
        path, text = _append(self.submission, batch, self.cluster, self.code, _throttle(batch, whole, self.cluster))
        self.submission.save()
        write_atomic(path, text)
        try:
            job = self._sbatch(path, entry, wait_for_room=batch.single)
        except (TooMany, NoArrays, Forgotten):
            self.submission.change(entry, keys={})  # its jobs go into other batches
            raise
        self.submission.change(entry, id=job)

    def _sbatch(self, script: Path, entry: int, wait_for_room: bool) -> str:
        """Submit `script` exactly once and return SLURM's id. Raises Refused (for good), NoArrays (not as an array), Forgotten
        (waits for a job that is no more), TooMany (above a limit: at once, or with `wait_for_room` after `submit_minutes`) or
        ForNow (no answer in `submit_minutes`)."""
        minutes = self.cluster.submit_minutes
        end = time.monotonic() + 60 * minutes
        attempts = unclear = 0
        error: ForNow | None = None
        while True:
            try:
                if error is not None:
                    queue = self._queue()
                    if made := find(self.submission, entry, queue):
                        return made[0].array
                    busy = any(job.active for job in queue.values())
                    if unclear >= UNCLEAR_TRIES or (isinstance(error, TooMany) and not busy):
                        raise Refused(str(error))
                return client.sbatch(str(script))
            except ForNow as problem:
                error = problem
            self.troubled = True
            unclear += isinstance(error, Unclear)
            pause = PAUSES_S[min(attempts, len(PAUSES_S) - 1)]
            if (isinstance(error, TooMany) and not wait_for_room) or time.monotonic() + pause > end:
                raise error
            if attempts == 2:
                why = escape(str(error))
                self.console.print(f"SLURM accepts no job for now ({why}); trying again for up to {minutes:g} minutes ...")
            attempts += 1
            time.sleep(pause)

    def _queue(self) -> dict[str, QueuedJob]:
        try:
            return client.queue()
        except ValueError as error:
            raise ForNow(str(error)) from None

    def _withdraw(self) -> int:
        """Cancel what was submitted, also jobs whose answer was lost. Returns the number of jobs whose id was known."""
        self.submission.withdrawn = True
        self.submission.save()  # a job that appears later reads this and exits
        ids = {batch.id for batch in self.submission.batches if batch.id is not None}
        with contextlib.suppress(ValueError):  # no answer: the next submission cancels them
            client.cancel(ids | adopt([self.submission], client.queue()))
        return len(self.submission.job_ids())


def _asked(job: Job, cluster: Cluster) -> str:
    """Return what a job asks for, as SLURM rarely names the value that it refuses."""
    settings = cluster.settings(job.kind)
    names = ("partition", "account", "qos", "constraint", "gpu_type", "cpus_per_task", "mem_gb_per_task", "sbatch")
    said = [f"{name} {value}" for name in names if (value := getattr(settings, name))]
    gpus = f"GPUs {job.resources.gpus}, " * (job.resources.gpus > 0)
    return f"It asks for {gpus}{', '.join([*said, f'hours {job.resources.minutes / 60:.1f}'])}; fix that in the cluster file."


def rehearse(plan: Plan, cluster: Cluster, console: Console) -> int:
    """Print every sbatch script, the graph, the number of jobs and GPU-hours (`--dry-run`). Needs no SLURM, writes nothing."""
    jobs = graph.jobs(plan, cluster)
    _check_machine(jobs, cluster)
    submission, code = new_submission(plan, cluster, jobs), cluster.scratch / "snapshots" / "DIGEST"
    number = Counter(job.kind for job in jobs)
    for group in graph.groups(jobs, cluster):
        for batch in graph.batches(group, submission.job_ids(), cluster.arrays):
            name, throttle = f"JOB{len(submission.batches)}", _throttle(batch, number[batch.kind], cluster)
            _, text = _append(submission, replace(batch, id=name), cluster, code, throttle)
            console.rule(f"{name}: {batch.kind}, {len(batch.keys)} jobs", align="left")
            console.print(text, markup=False, soft_wrap=True)
    console.rule("graph", align="left")
    _say_settings(cluster, console)
    wide(console).print(_overview(jobs, submission.job_ids()))
    hours = sum(job.resources.gpu_hours for job in jobs)
    training = sum(job.resources.gpu_hours for job in jobs if job.kind == "train")
    cost = f"{hours:,.0f} GPU-hours ({training:,.0f} of training at {cluster.mfu:.0%} of {cluster.gpu_tflops:,.0f} TFLOP/s, " \
           f"the rest is the most that evaluations may take)" if cluster.gpu_tflops else "no GPUs"  # fmt: skip
    console.print(f"{len(jobs)} jobs by {len(submission.batches)} calls of sbatch; {cost}; nothing was submitted")
    for corpus in plan.corpora:
        if isinstance(corpus, KnownCorpus):
            console.print(f"[yellow]note:[/] {escape(corpus.note)}")
    return 0


def _overview(jobs: list[Job], ids: dict[str, str]) -> Table:
    """Build a table of one line per run, with its jobs and the starts that a long training needs, and one per other job."""
    table = Table("what", "train", "evaluate", "time", "other", "nodes x tasks", "GPUs", "hours", box=None, pad_edge=False)
    rows: defaultdict[str, dict[str, Job]] = defaultdict(dict)
    for job in jobs:
        rows[job.about if job.of_a_run else job.key][job.kind] = job
    for members in rows.values():
        taken = {kind: ids.get(job.key, "not accepted") for kind, job in members.items()}
        cells = [taken.get(kind, "") for kind in ("train", "evaluate", "time")]
        other = next((f"{kind} {job_id}" for kind, job_id in taken.items() if kind in ("prepare", "draw")), "")
        first = next(iter(members.values()))
        size, hours = first.resources, first.resources.minutes / 60
        starts = math.ceil(size.gpu_hours / (size.gpus or 1) / hours - 0.01)
        asked = (f"{size.nodes} x {size.tasks_per_node}", str(size.gpus or "-"))
        table.add_row(first.about, *cells, other, *asked, f"{hours:.1f}" + (f" x {starts}" if starts > 1 else ""))
    return table


def _say_settings(cluster: Cluster, console: Console) -> None:
    """Print what the cluster file does not show: the jobs' python, caches in HOME, and variables that are left out."""
    where = "in the container" if cluster.container else "as setup leaves it" if cluster.setup else "of this shell"
    console.print(f"jobs run {task_python(cluster)} ({where})", markup=False)
    caches = {"HF_HOME": "~/.cache/huggingface", **({"TRITON_CACHE_DIR": "~/.triton"} if cluster.gpus_per_node else {})}
    at_home = [f"{folder} ({name})" for name, folder in caches.items() if name not in {*os.environ, *cluster.environment}]
    if at_home:
        console.print(f"caches are in {', '.join(at_home)}; set these in `environment` if nodes do not see HOME or it is small")
    left_out = sorted(name for name in os.environ if name.startswith("SBATCH_"))
    if left_out:  # they would override the options of a batch script
        console.print(f"[yellow]left out:[/] {', '.join(left_out)} of this shell; the cluster file says where jobs go")


def new_submission(plan: Plan, cluster: Cluster, jobs: list[Job]) -> Submission:
    """Make a submission of `jobs`, not yet saved. Its name, a date in microseconds and a random digit, sorts by time."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))
    path = graph.submissions_dir(plan) / f"{stamp}-{nanoseconds // 1000:05x}{secrets.token_hex(1)[0]}.json"
    asked = {"request": REQUEST.dump_python(plan.request, mode="json"), "cluster": CLUSTER.dump_python(cluster, mode="json")}
    return Submission(path, client.me(), os.getcwd(), cluster.max_restarts, {job.key: job for job in jobs}, [], **asked)


def _check_machine(jobs: list[Job], cluster: Cluster) -> None:
    """Raise ValueError for timings if the cluster file does not name the machine."""
    if cluster.machine == UNNAMED and any(job.kind == "time" for job in jobs):
        example = 'machine = "NVIDIA H100 80GB HBM3" (slurm/clusters/README.md says how to find it)'
        reason = "there are timings, which belong to one kind of machine"
        raise ValueError(f"{reason}: name it in the cluster file, such as {example}, or leave their artefacts out.")


def planned(request: Request, cluster: Cluster, *, rehearsal: bool = False) -> Plan:
    """Plan a request for the machines of a cluster, as the login node may have no GPU. Options of trainings that the request
    leaves at their default are taken from the cluster file."""
    execution = request.execution
    said = {item.name: value for item in fields(Execution) if (value := getattr(cluster.train, item.name, None)) is not None
            and getattr(execution, item.name) == item.default}  # fmt: skip
    request = replace(request, execution=replace(execution, **said))
    return make_plan(request.on(cluster.device), machine=cluster.machine, rehearsal=rehearsal)


def whole_paths(request: Request) -> Request:
    """Return the request with absolute paths: jobs and later commands must not depend on where they are started."""
    places = {name: getattr(request, name).absolute() for name in ("runs_dir", "results_dir", "corpora_dir")}
    given: dict[str, Any] = {name: path.absolute() for name, path in vars(request.user_data).items() if isinstance(path, Path)}
    return replace(request, **places, user_data=replace(request.user_data, **given))


def _check_unseen(jobs: list[Job], before: list[Submission], unseen: set[str]) -> None:
    """Raise ValueError if a colleague whose jobs SLURM hides has submitted the same: nothing may be submitted twice."""
    made = {path for job in jobs for path in job.makes}
    for submission in (submission for submission in before if submission.user in unseen and not submission.withdrawn):
        for key, job_id in submission.job_ids().items():
            job, who = submission.jobs[key], submission.user
            if made & set(job.makes) and not restarts.has_ended(job.journal, job_id):
                hidden = "from this runs folder, and SLURM hides others' jobs (PrivateData=jobs): it may be under way"
                away = f"once those jobs are gone, move {submission.path} away"
                remedy = f"Let {who} run this, choose another --runs-dir, or, {away}."
                raise ValueError(f"{who} has submitted '{job.name}' {hidden}. {remedy}")
