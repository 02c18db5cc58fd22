"""`run --launcher slurm`: submit what is neither there nor under way, all of it or nothing; `--dry-run` shows it instead."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from experiments.plan import KnownCorpus, Plan, Request, write_specs
from slurm import client, graph, journal
from slurm.batch import sbatch, sbatch_parameters, script
from slurm.cluster import CLUSTER, Cluster
from slurm.graph import Group, Node
from slurm.records import Submission, active_jobs, new_submission, only_submitter, read_submissions
from slurm.snapshot import snapshot
from slurm.status import wide

REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


def submit(plan: Plan, cluster: Cluster, console: Console) -> int:
    """Submit the missing part of `plan` and return at once. ValueError if it cannot be done; nothing stays queued then."""
    client.require_slurm()
    plan, cluster = _with_whole_paths(plan, cluster)
    _check_writable(cluster.scratch)
    folder = graph.submissions_dir(plan)
    with only_submitter(folder, console):
        queue = client.queue()
        active = active_jobs(read_submissions(folder, queue), queue)
        promised = {Path(path) for _, node in active.values() for path in node["makes"] if node["kind"] == "evaluate"}
        nodes = graph.nodes(plan, cluster, promised, active)
        groups = graph.groups(nodes, cluster)
        if not groups:
            busy = f"{len(active)} jobs are queued or running; `python -m slurm status` shows them" if active else "all is done"
            console.print(f"nothing to submit: {busy}")
            return 0
        write_specs(plan)
        code = snapshot(cluster.scratch / "snapshots")
        submission = _describe(plan, cluster, folder, groups)
        submission.save()
        _submit_groups(groups, submission, cluster, code, {key: job_id for key, (job_id, _) in active.items()})
    ids = submission.job_ids()
    wide(console).print(_overview(groups, ids))
    if active:
        console.print(f"{len(active)} jobs of earlier submissions are still queued or running")
    console.print(f"submitted {len(nodes)} jobs; code snapshot {code.name}; `python -m slurm status` shows how they are doing")
    return 0


def _submit_groups(groups: list[Group], submission: Submission, cluster: Cluster, code: Path, active: dict[str, str]) -> None:
    """sbatch all groups, or none: on any failure and on Ctrl-C what was submitted is cancelled again."""
    entries = submission.values["groups"]
    try:
        for index, group in enumerate(groups):
            dependency = _dependency(group, {**active, **submission.job_ids()}, entries)
            parameters = sbatch_parameters(group, index, submission, cluster, code, dependency)
            folder = cluster.scratch / "jobs" / submission.id / f"{index:02d}-{group.kind}"
            entries[index]["job_id"] = sbatch(group, folder, cluster, submission, parameters)
            submission.save()
    except BaseException as error:
        # Also jobs that sbatch made before it was interrupted: they carry the submission's name.
        ours = {entry["job_id"] for entry in entries if entry["job_id"] is not None}
        if not isinstance(error, ValueError):
            prefix = submission.comment(0).rsplit(":", 1)[0] + ":"
            ours |= {job.id.split("_")[0] for job in client.queue().values() if job.comment.startswith(prefix)}
        client.cancel(sorted(ours))
        submission.path.unlink(missing_ok=True)
        if isinstance(error, ValueError):
            undone = f" Submitted before it and cancelled again: {len(ours)}." if ours else ""
            raise ValueError(f"SLURM refused the job '{group.kind}': {error}.{undone}") from None
        raise
    ids = submission.job_ids()
    for node in (node for group in groups for node in group.nodes):
        journal.append(node.journal, "submitted", job=ids[node.key], key=node.key, submission=submission.id)


def _dependency(group: Group, ids: dict[str, str], entries: list[dict]) -> str | None:
    """SLURM's expression for what a group waits for; what is done already has no id and is left out."""
    if group.pairs_with is not None and len(group.nodes) > 1:
        return f"aftercorr:{entries[group.pairs_with]['job_id']}"
    needs = [ids[key] for key in group.nodes[0].needs if key in ids]
    return f"afterok:{':'.join(needs)}" if needs else None


def rehearse(plan: Plan, cluster: Cluster, console: Console) -> int:
    """`--dry-run`: every sbatch script, the graph, the number of jobs and GPU-hours. Needs no SLURM and writes nothing."""
    plan, cluster = _with_whole_paths(plan, cluster)
    groups = graph.groups(graph.nodes(plan, cluster), cluster)
    submission = _describe(plan, cluster, graph.submissions_dir(plan), groups)
    entries = submission.values["groups"]
    for index, group in enumerate(groups):
        entries[index]["job_id"] = f"JOB{index}"
        dependency = _dependency(group, submission.job_ids(), entries)
        parameters = sbatch_parameters(group, index, submission, cluster, cluster.scratch / "snapshots" / "DIGEST", dependency)
        folder = cluster.scratch / "jobs" / submission.id / f"{index:02d}-{group.kind}"
        console.rule(f"JOB{index}: {group.kind}, {len(group.nodes)} jobs", align="left")
        console.print(script(group, folder, cluster, parameters), markup=False, soft_wrap=True)
    console.rule("graph", align="left")
    wide(console).print(_overview(groups, submission.job_ids()))
    count, hours = sum(len(group.nodes) for group in groups), sum(node.gpu_hours for group in groups for node in group.nodes)
    training = sum(node.gpu_hours for group in groups for node in group.nodes if node.kind == "train")
    cost = f"{hours:,.0f} GPU-hours ({training:,.0f} of training at {cluster.mfu:.0%} of {cluster.gpu_tflops:,.0f} TFLOP/s, " \
           f"the rest the most that evaluations may take)" if cluster.gpu_tflops else "no GPUs"  # fmt: skip
    console.print(f"{count} jobs by {len(groups)} calls of sbatch; {cost}; nothing was submitted")
    if isinstance(plan.corpus, KnownCorpus):
        console.print(f"[yellow]note:[/] {plan.corpus.note}")
    return 0


def _overview(groups: list[Group], ids: dict[str, str]) -> Table:
    table = Table("job", "what", "waits for", "nodes x tasks", "GPUs", "hours", box=None, pad_edge=False)
    for group in groups:
        longest = max(node.resources.minutes for node in group.nodes) / 60
        for node in group.nodes:
            size, gpus = node.resources, str(node.resources.gpus or "-")
            needs = _brief([ids[key] for key in node.needs if key in ids]) or "-"
            shape = f"{size.nodes} x {size.tasks_per_node}"
            table.add_row(ids.get(node.key, "?"), what(node), needs, shape, gpus, f"{longest:.1f}")
    return table


def _brief(ids: list[str]) -> str:
    """Job ids with the tasks of one array as 12_[0-6]."""
    tasks: dict[str, list[str]] = {}
    for job_id in ids:
        job, _, task = job_id.partition("_")
        tasks.setdefault(job, []).append(task)
    brief = []
    for job, found in tasks.items():
        numbers = sorted(int(task) for task in found if task)
        whole = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
        span = f"_[{numbers[0]}-{numbers[-1]}]" if whole else "_" + ",".join(map(str, numbers)) if numbers else ""
        brief.append(job + span)
    return " ".join(brief)


def what(node: Node) -> str:
    return " ".join(node.key.split(":")[:2])


def _describe(plan: Plan, cluster: Cluster, folder: Path, groups: list[Group]) -> Submission:
    return new_submission(
        folder,
        groups,
        cwd=os.getcwd(),
        request=REQUEST.dump_python(plan.request, mode="json"),
        cluster=CLUSTER.dump_python(cluster, mode="json"),
        max_restarts=cluster.max_restarts,
    )


def _with_whole_paths(plan: Plan, cluster: Cluster) -> tuple[Plan, Cluster]:
    """The same with absolute paths: jobs and later commands must not depend on where they are started."""
    request = plan.request
    places = {name: getattr(request, name).absolute() for name in ("runs_dir", "results_dir", "corpora_dir")}
    runs = {model: replace(run, folder=type(run.folder)(run.folder.path.absolute())) for model, run in plan.runs.items()}
    corpus = replace(plan.corpus, folder=plan.corpus.folder.absolute())
    whole = replace(plan, request=replace(request, **places), runs=runs, corpus=corpus)
    return whole, replace(cluster, scratch=cluster.scratch.absolute())


def _check_writable(scratch: Path) -> None:
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=scratch):
            pass
    except OSError as error:
        raise ValueError(
            f"scratch {scratch} of the cluster file cannot be written: {error.strerror}; name a folder that all nodes see."
        ) from None
