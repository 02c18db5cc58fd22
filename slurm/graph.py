"""The tasks of a plan (experiments/graph.py) as jobs, and which of them are one array.

prepare -> train -> evaluate -> draw        afterok, and afterok task by task between two arrays (aftercorr)
           time  -----------------^         a drawing waits for its own evaluations only, however they end (afterany)
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from experiments import graph
from experiments.graph import Task
from experiments.plan import Plan
from slurm import resources
from slurm.cluster import KINDS, Cluster
from slurm.job import Batch, Job


def submissions_dir(plan: Plan) -> Path:
    return graph.plans_dir(plan) / "submissions"


def jobs(plan: Plan, cluster: Cluster, active: Mapping[str, Job] | None = None) -> list[Job]:
    """Return what is neither there nor under way, kind by kind, so that every job comes after what it needs.

    `active`: the jobs that are queued or running, by key. ValueError for a training that cannot be shared among its processes.
    """
    active = active or {}
    makers = {path: key for key, job in active.items() for path in job.makes}
    missing = graph.tasks(plan, frozenset(makers))
    new = [task for task in missing if task.kind != "draw" and task.key not in active]
    makers |= {path: task.key for task in new for path in task.makes}
    for task in (task for task in missing if task.kind == "draw"):
        lines = plan.lines[task.key.split(":")[1]]
        files = (line.run / "evals" / f"{each}.parquet" for line in lines for each in line.evals)
        needs = {makers[file] for file in files if file in makers}
        if task.key not in active or not needs <= active.keys():  # one under way does not wait for what is submitted only now
            new.append(replace(task, needs=tuple(sorted(needs))))
    return [_job(plan, task, cluster) for kind in KINDS for task in new if task.kind == kind]


def _job(plan: Plan, task: Task, cluster: Cluster) -> Job:
    wanted = resources.of_task(task, cluster)
    if task.kind == "train":
        assert task.run is not None
        task = graph.train_task(plan, task.run, wanted.tasks)
    shared = {item.name: getattr(task, item.name) for item in fields(Job) if item.name != "resources"}
    return Job(**shared, resources=wanted)


def groups(found: Iterable[Job], cluster: Cluster) -> list[list[Job]]:
    """Jobs of equal kind and shape, which can be one array of the longest time among them: short jobs find a place sooner, so
    times differ by less than four times, but where a throttle is to hold for all of them."""
    alike: dict[tuple, list[Job]] = {}
    for job in found:
        size = job.resources
        times = size.minutes.bit_length() // 2 if cluster.max_concurrent is None else 0
        alike.setdefault((job.kind, size.nodes, size.tasks_per_node, size.gpus_per_node, times), []).append(job)
    return list(alike.values())


def batches(group: list[Job], ids: Mapping[str, str], arrays: bool = True) -> list[Batch]:
    """A group as it can be submitted, given SLURM's ids of what was submitted before: task by task after the tasks of one array
    (their indices are then those of that array), one array for all that wait for the same, and else single jobs."""
    alike: dict[str | None, dict[int, Job]] = {}
    for job in group:
        kind, waits_for = _dependency(job, ids)
        array, _, index = waits_for[0].partition("_") if len(waits_for) == 1 else ("", "", "")
        if kind == "afterok" and index:
            members = alike.setdefault(f"aftercorr:{array}", {})
            assert int(index) not in members, f"{job.key}: a run has one evaluation in a submission"
            members[int(index)] = job
        else:
            members = alike.setdefault(_expression(job, ids), {})
            members[len(members)] = job
    found = []
    for dependency, members in alike.items():
        if arrays and len(members) > 1:
            found.append(Batch({index: job.key for index, job in members.items()}, dependency))
        else:
            found += [Batch({0: job.key}, _expression(job, ids)) for job in members.values()]
    return found


def _expression(job: Job, ids: Mapping[str, str]) -> str | None:
    kind, waits_for = _dependency(job, ids)
    return f"{kind}:{':'.join(_brief(waits_for, ids))}" if waits_for else None


def _brief(waits_for: list[str], ids: Mapping[str, str]) -> list[str]:
    """The id of an array for all of its tasks that are open."""
    whole = set(waits_for)
    arrays = {job.split("_")[0] for job in waits_for if "_" in job}
    for array in sorted(arrays):
        tasks = {job for job in ids.values() if job.startswith(f"{array}_")}
        if len(tasks) > 1 and tasks <= whole:
            whole = whole - tasks | {array}
    return sorted(whole)


def _dependency(job: Job, ids: Mapping[str, str]) -> tuple[str, list[str]]:
    """Kind of waiting, and the ids that a job waits for; what is done already has none and is left out."""
    if job.kind == "draw":
        return "afterany", [ids[key] for key in job.needs if key in ids]
    trainings = [key for key in job.needs if key.startswith("train:") and key in ids]  # which wait for their corpus
    return "afterok", [ids[key] for key in trainings or job.needs if key in ids]
