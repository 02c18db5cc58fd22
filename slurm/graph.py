"""The tasks of a plan (experiments/graph.py) as jobs: the resources of each, and which of them form an array.

prepare -> train -> evaluate -> draw        afterok, and afterok task by task between two arrays (aftercorr)
           time  -----------------^         a drawing waits for its own evaluations only, however they end (afterany)"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from experiments import graph
from experiments.graph import Planned
from experiments.overview import train_flops
from experiments.plan import Plan, Run
from experiments.task import Task
from slurm.cluster import KINDS, Cluster
from slurm.job import Batch, Job, Resources

START_HOURS = 0.25  # loading, compiling, saving
MIN_HOURS = 0.5
MORE = 1.5


def submissions_dir(plan: Plan) -> Path:
    return graph.plans_dir(plan) / "submissions"


def jobs(plan: Plan, cluster: Cluster, active: Mapping[str, Job] | None = None) -> list[Job]:
    """Return the jobs that are neither done nor active, kind by kind, so that every job comes after those that it needs.

    `active`: the jobs that are queued or running, by key. Raises ValueError if a training cannot be split among its processes.
    """
    active = active or {}
    makers = {path: key for key, job in active.items() for path in job.makes}
    missing = graph.tasks(plan, frozenset(makers))
    new = [task for task in missing if task.kind != "draw" and task.key not in active]
    makers |= {path: task.key for task in new for path in task.makes}
    for task in (task for task in missing if task.kind == "draw"):
        lines = plan.drawings[task.key.split(":")[1]].lines
        files = (line.run / "evals" / f"{each}.parquet" for line in lines for each in line.evals)
        needs = {makers[file] for file in files if file in makers}
        if task.key not in active or not needs <= active.keys():  # an active one does not wait for jobs submitted only now
            new.append(replace(task, needs=tuple(sorted(needs))))
    return [_job(plan, task, cluster) for kind in KINDS for task in new if task.kind == kind]


def _job(plan: Plan, task: Planned, cluster: Cluster) -> Job:
    if task.kind == "train":
        assert task.run is not None
        wanted = for_training(task.run, cluster)
        task = graph.train_task(plan, task.run, wanted.tasks)
    else:
        gpus = cluster.settings(task.kind).gpus
        if gpus is None:
            gpus = int(cluster.gpus_per_node > 0 and task.kind in ("evaluate", "time"))
        minutes = _minutes(cluster.hours(task.kind), task.kind, cluster)
        wanted = Resources(1, 1, gpus, minutes, gpu_hours=gpus * minutes / 60)
    shared = {item.name: getattr(task, item.name) for item in fields(Task)}
    return Job(**shared, resources=wanted)


def train_gpu_hours(run: Run, cluster: Cluster) -> float:
    """Estimate the GPU-hours of a training at the cluster's assumed MFU; 0 on a cluster without GPUs."""
    rate = cluster.mfu * (cluster.gpu_tflops or math.inf) * 1e12
    return train_flops(run) / rate / 3600


def for_training(run: Run, cluster: Cluster) -> Resources:
    """Return the processes for `run`, and its estimated time with a margin, up to the cluster's limit. If the cluster file does
    not set the number of GPUs: the smallest power of two, within a node, that finishes in one job, or else the largest. Raises
    ValueError if a step's sequences cannot be split evenly among them."""
    estimate, limit = train_gpu_hours(run, cluster), cluster.hours("train")
    gpus, nodes, tasks, hours = 0, cluster.train.nodes, cluster.train.tasks, limit
    if cluster.gpus_per_node:
        total, gpus = estimate * cluster.margin, cluster.train.gpus or 1
        while not cluster.train.gpus and gpus * 2 <= cluster.gpus_per_node and total / gpus + START_HOURS > limit:
            gpus *= 2
        nodes, tasks = math.ceil(gpus / cluster.gpus_per_node), gpus
        hours = max(MIN_HOURS, total / gpus + START_HOURS)
    train = run.spec.train
    if (count := train.num_pieces) % tasks:
        name = "train.gpus" if gpus else "train.tasks"
        raise ValueError(f"{name} {tasks}: a step of {run.spec.name} has {count} {train.pieces}; choose a divisor of {count}.")
    return Resources(nodes, tasks // nodes, gpus // nodes, _minutes(hours, "train", cluster), estimate)


def _minutes(hours: float, kind: str, cluster: Cluster) -> int:
    shortest = 2 * cluster.signal_seconds / 3600
    return max(1, math.ceil(60 * min(max(hours, shortest), cluster.hours(kind)) - 1e-9))


def enlarged(job: Job, before: Iterable[tuple[Job, str]], cluster: Cluster) -> Job:
    """Return the job, with half as much memory or time again as an earlier job for the same evaluation had, if SLURM ended that
    one for lack of it. `before`: earlier jobs and how they ended. Time is limited by the cluster file."""
    limit = int(60 * (cluster.evaluate.time_limit_hours or cluster.time_limit_hours or 0))
    for old, state in before:
        if job.kind == old.kind == "evaluate" and set(job.makes) & set(old.makes):
            size, more = old.resources, MORE if state == "TIMEOUT" else 1
            minutes = max(job.resources.minutes, min(limit, math.ceil(size.minutes * more)))
            memory = size.memory * (MORE if state == "OUT_OF_MEMORY" else 1)
            job = replace(job, resources=replace(job.resources, minutes=minutes, memory=memory))
    return job


def groups(found: Iterable[Job], cluster: Cluster) -> list[list[Job]]:
    """Group jobs of equal kind and shape, each group for one array with the longest time in it. As short jobs start sooner,
    times within a group differ by less than a factor of four, unless a throttle must hold for all."""
    alike: defaultdict[tuple, list[Job]] = defaultdict(list)
    for job in found:
        size = job.resources
        times = size.minutes.bit_length() // 2 if cluster.max_concurrent is None else 0
        alike[job.kind, size.nodes, size.tasks_per_node, size.gpus_per_node, size.memory, times].append(job)
    return list(alike.values())


def batches(group: list[Job], ids: Mapping[str, str], arrays: bool = True) -> list[Batch]:
    """Split a group into batches, given SLURM's ids of the jobs that were submitted before. Jobs that each wait for one task of
    an array form an array with the same indices; jobs that wait for the same jobs form an array; others are single jobs."""
    alike: defaultdict[str | None, dict[int, Job]] = defaultdict(dict)
    for job in group:
        kind, waits_for = _dependency(job, ids)
        array, _, index = waits_for[0].partition("_") if len(waits_for) == 1 else ("", "", "")
        if kind == "afterok" and index:
            members = alike[f"aftercorr:{array}"]
            assert int(index) not in members, f"{job.key}: a run has one evaluation in a submission"
            members[int(index)] = job
        else:
            members = alike[_expression(job, ids)]
            members[len(members)] = job
    found = []
    for dependency, members in alike.items():
        if arrays and len(members) > 1:
            found.append(Batch({index: job.key for index, job in members.items()}, dependency))
        else:
            found += [Batch({0: job.key}, _expression(job, ids)) for job in members.values()]
    return found


def _expression(job: Job, ids: Mapping[str, str]) -> str | None:
    """Return a job's dependency in sbatch's syntax; the id of an array stands for all of its open tasks."""
    kind, waits_for = _dependency(job, ids)
    whole = set(waits_for)
    for array in sorted({job_id.split("_")[0] for job_id in waits_for if "_" in job_id}):
        tasks = {job_id for job_id in ids.values() if job_id.startswith(f"{array}_")}
        if len(tasks) > 1 and tasks <= whole:
            whole = whole - tasks | {array}
    return f"{kind}:{':'.join(sorted(whole))}" if whole else None


def _dependency(job: Job, ids: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the kind of dependency, and the ids that a job waits for; jobs that are done have none. Evaluations need not wait
    for the corpus, as their training does."""
    trainings = [key for key in job.needs if key.startswith("train:") and key in ids]
    return "afterany" if job.kind == "draw" else "afterok", [ids[key] for key in trainings or job.needs if key in ids]
