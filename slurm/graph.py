"""A plan as a graph of SLURM jobs: corpus -> train -> evaluate -> draw, and how its nodes are grouped into submissions."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from experiments.plan import Job, Plan, Run, collect_job, eval_job, prepare_job, train_job
from slurm import resources
from slurm.cluster import Cluster
from slurm.resources import Resources


@dataclass(frozen=True)
class Node:
    """One job. `key` says what it is, equally in every submission; `needs` are keys; `folder` shows its progress."""

    key: str
    job: Job
    needs: tuple[str, ...]
    resources: Resources
    folder: Path
    gpu_hours: float

    @property
    def kind(self) -> str:
        return self.key.split(":")[0]

    @property
    def log(self) -> Path:
        name = self.kind if self.job.run is not None else self.key.replace(":", "-")
        return self.folder / "logs" / f"{name}.log"

    @property
    def journal(self) -> Path:
        name = self.kind if self.job.run is not None else self.key.replace(":", "-")
        return self.folder / "slurm" / f"{name}.jsonl"


@dataclass(frozen=True)
class Group:
    """Nodes that are submitted by one sbatch: equal resources and dependencies. `pairs_with`: index of the group whose i-th
    task the i-th task of this one waits for."""

    nodes: tuple[Node, ...]
    pairs_with: int | None = None

    @property
    def kind(self) -> str:
        return self.nodes[0].kind


def submissions_dir(plan: Plan) -> Path:
    return plan.request.runs_dir / plan.scale.name / "submissions"


def nodes(plan: Plan, cluster: Cluster, promised: Collection[Path] = (), active: Collection[str] = ()) -> list[Node]:
    """What is neither there nor under way, in an order in which every node comes after what it needs.

    `active`: keys of jobs that are queued or running; `promised`: the files they will make.
    """
    found: list[Node] = []
    first: tuple[str, ...] = ()
    if not plan.corpus.ready:
        key = f"prepare:{plan.corpus.folder.name}"
        first = (key,)
        found.append(Node(key, prepare_job(plan), (), resources.for_preparing(cluster), submissions_dir(plan), 0.0))
    for run in plan.runs.values():
        found.append(_train(plan, run, cluster, first))
    for run in plan.runs.values():
        missing = tuple(spec for spec in run.missing_evals if run.eval_file(spec) not in promised)
        if missing:
            found.append(_evaluate(plan, run, missing, cluster))
    found += [_draw(plan, name, found, active, cluster) for name in plan.artefacts]
    return [node for node in found if node.key not in active and not _done(plan, node)]


def _train(plan: Plan, run: Run, cluster: Cluster, needs: tuple[str, ...]) -> Node:
    wanted = resources.for_training(run, cluster)
    job = train_job(plan, run, cluster.device, processes=wanted.tasks)
    gpu_hours = resources.train_gpu_hours(run, cluster) or 0.0
    return Node(f"train:{run.spec.folder_name}", job, needs, wanted, run.folder.path, gpu_hours)


def _evaluate(plan: Plan, run: Run, missing: tuple, cluster: Cluster) -> Node:
    job = eval_job(plan, run, cluster.device, missing)
    wanted = resources.for_evaluation(cluster)
    key = f"evaluate:{run.spec.folder_name}:{_digest([str(path.name) for path in job.makes])}"
    return Node(key, job, (f"train:{run.spec.folder_name}",), wanted, run.folder.path, wanted.gpus * wanted.minutes / 60)


def _draw(plan: Plan, artefact: str, planned: list[Node], active: Collection[str], cluster: Cluster) -> Node:
    runs = plan.runs_of(artefact)
    names = {run.spec.folder_name for run in runs}
    keys = [node.key for node in planned] + list(active)
    needs = tuple(sorted({key for key in keys if key.startswith("evaluate:") and key.split(":")[1] in names}))
    key = f"draw:{artefact}:{_digest([str(path) for _, path in plan.eval_files(artefact)])}"
    return Node(key, collect_job(plan, artefact), needs, resources.for_drawing(cluster), submissions_dir(plan), 0.0)


def _done(plan: Plan, node: Node) -> bool:
    if node.kind == "draw":
        return not node.needs and drawn(plan, node.key.split(":")[1])
    return node.job.done


def drawn(plan: Plan, artefact: str) -> bool:
    """Whether an artefact's stored rows hold every evaluation of every run of the plan, and the report is there."""
    results = plan.request.results_dir / plan.scale.name
    try:
        meta = json.loads((results / f"{artefact}.meta.json").read_text())
    except (OSError, ValueError):
        return False
    stored = {(eval_id, run) for eval_id, entry in meta["evals"].items() for run in entry["runs"]}
    wanted = {(path.stem, run.spec.run_id) for run, path in plan.eval_files(artefact)}
    return wanted <= stored and (results / "report.html").exists()


def groups(found: list[Node], cluster: Cluster) -> list[Group]:
    """Nodes of equal kind, dependencies and resources become one array; each asks for the longest time among them."""
    arrays: dict[tuple, list[Node]] = {}
    for node in found:
        if node.kind != "evaluate":
            shape = (node.resources.nodes, node.resources.tasks_per_node, node.resources.gpus_per_node)
            alone = node.key if node.kind == "draw" else ""
            arrays.setdefault((node.kind, node.needs, shape, alone), []).append(node)
    order = [Group(tuple(members)) for members in arrays.values()]
    before = [group for group in order if group.kind != "draw"]
    evaluations = {node.needs[0]: node for node in found if node.kind == "evaluate"}
    ready = []
    for index, group in enumerate(list(before)):
        followers = [evaluations.pop(node.key, None) for node in group.nodes] if group.kind == "train" else []
        if followers and all(followers):
            before.append(Group(tuple(node for node in followers if node is not None), pairs_with=index))
        else:
            evaluations |= {node.needs[0]: node for node in followers if node is not None}
    for node in evaluations.values():
        if node.job.run is not None and node.job.run.folder.finished:
            ready.append(node)
        else:
            before.append(Group((node,)))
    if ready:
        before.append(Group(tuple(ready)))
    return before + [group for group in order if group.kind == "draw"]


def _digest(names: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:8]
