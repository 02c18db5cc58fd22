"""What SLURM adds to the graph of a plan (experiments/graph.py): the resources of each task, and which tasks are one array.

prepare -> train -> evaluate -> draw        afterok, and afterok task by task between two arrays (aftercorr)
           time  -----------------^         a drawing waits for its own evaluations only, however they end (afterany)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments import graph
from experiments.graph import Task
from experiments.plan import Plan
from slurm import resources
from slurm.cluster import KINDS, Cluster
from slurm.resources import Resources


@dataclass(frozen=True)
class Node:
    """A task and what it asks SLURM for."""

    task: Task
    resources: Resources
    gpu_hours: float

    @property
    def key(self) -> str:
        return self.task.key

    @property
    def kind(self) -> str:
        return self.task.kind


@dataclass(frozen=True)
class Batch:
    """Nodes that are submitted by one sbatch, by their index in the array; a single one without an array."""

    nodes: dict[int, Node]
    dependency: str | None

    @property
    def kind(self) -> str:
        return next(iter(self.nodes.values())).kind

    @property
    def single(self) -> bool:
        return len(self.nodes) == 1


def submissions_dir(plan: Plan) -> Path:
    return graph.plans_dir(plan) / "submissions"


def nodes(plan: Plan, cluster: Cluster, active: Mapping[str, Mapping[str, Any]] | None = None) -> list[Node]:
    """What is neither there nor under way, kind by kind, so that every node comes after what it needs.

    `active`: the tasks that are queued or running, as records.described tells them, by key. ValueError for a training that
    cannot be shared among its processes.
    """
    active = active or {}
    makers = {Path(path): key for key, task in active.items() for path in task["makes"]}
    missing = graph.tasks(plan, frozenset(makers))
    new = [task for task in missing if task.kind != "draw" and task.key not in active]
    makers |= {path: task.key for task in new for path in task.makes}
    for task in (task for task in missing if task.kind == "draw"):
        lines = plan.lines[task.key.split(":")[1]]
        files = (plan.runs[line.run_id].eval_file(spec) for line in lines for spec in line.evals)
        needs = {makers[file] for file in files if file in makers}
        if task.key not in active or not needs <= active.keys():  # one under way does not wait for what is submitted only now
            new.append(replace(task, needs=tuple(sorted(needs))))
    return [_node(plan, task, cluster) for kind in KINDS for task in new if task.kind == kind]


def _node(plan: Plan, task: Task, cluster: Cluster) -> Node:
    wanted = resources.of_task(task, cluster)
    if task.kind != "train":
        return Node(task, wanted, wanted.gpus * wanted.minutes / 60)
    assert task.run is not None
    return Node(graph.train_task(plan, task.run, wanted.tasks), wanted, resources.train_gpu_hours(task.run, cluster))


def groups(found: Iterable[Node], cluster: Cluster) -> list[list[Node]]:
    """Nodes of equal kind and shape, which can be one array of the longest time among them: short jobs find a place sooner, so
    times differ by less than four times, but where a throttle is to hold for all of them."""
    alike: dict[tuple, list[Node]] = {}
    for node in found:
        size = node.resources
        times = size.minutes.bit_length() // 2 if cluster.max_concurrent is None else 0
        alike.setdefault((node.kind, size.nodes, size.tasks_per_node, size.gpus_per_node, times), []).append(node)
    return list(alike.values())


def batches(group: list[Node], ids: Mapping[str, str], arrays: bool = True) -> list[Batch]:
    """A group as it can be submitted, given SLURM's ids of what was submitted before: task by task after the tasks of one array
    (their indices are then those of that array), one array for all that wait for the same, and else single jobs."""
    alike: dict[str, dict[int, Node]] = {}
    for node in group:
        kind, waits_for = _dependency(node, ids)
        array, _, index = waits_for[0].partition("_") if len(waits_for) == 1 else ("", "", "")
        if kind == "afterok" and index:
            members = alike.setdefault(f"aftercorr:{array}", {})
            assert int(index) not in members, f"{node.key}: a run has one evaluation in a submission"
            members[int(index)] = node
        else:
            members = alike.setdefault(_expression(node, ids) or "", {})
            members[len(members)] = node
    found = []
    for dependency, members in alike.items():
        if arrays and len(members) > 1:
            found.append(Batch(members, dependency or None))
        else:
            found += [Batch({0: node}, _expression(node, ids)) for node in members.values()]
    return found


def _expression(node: Node, ids: Mapping[str, str]) -> str | None:
    kind, waits_for = _dependency(node, ids)
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


def _dependency(node: Node, ids: Mapping[str, str]) -> tuple[str, list[str]]:
    """How and for which of SLURM's ids a node waits; what is done already has none and is left out."""
    if node.kind == "draw":
        return "afterany", [ids[key] for key in node.task.needs if key in ids]
    trainings = [key for key in node.task.needs if key.startswith("train:") and key in ids]  # which wait for their corpus
    return "afterok", [ids[key] for key in trainings or node.task.needs if key in ids]
