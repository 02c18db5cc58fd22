"""The tasks of a plan (experiments/graph.py) as jobs: their names, the resources of each, and what each waits for.

prepare -> train -> evaluate -> draw        afterok: a job starts when those before it are done, and is cancelled if one fails
           time  -----------------^         a drawing waits for its evaluations however they end (afterany)"""

import hashlib
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import submitit

from experiments import graph
from experiments.graph import Planned
from experiments.overview import eval_flops, train_flops
from experiments.plan import Plan, Run
from experiments.task import Task
from slurm.attempt import Attempt
from slurm.cluster import KINDS, UNNAMED, Cluster

START_HOURS, MIN_HOURS = 0.25, 0.5
"""Added to a training's estimate for loading, compiling and saving; and the least that a training asks for."""
LEAVE_S = 60
"""Seconds before the time limit that are kept for the requeue."""


@dataclass(frozen=True)
class Job:
    """A task with the resources that it asks for; a SLURM task is one process. `gpu_hours`: its estimate, for all starts."""

    task: Planned
    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    minutes: int
    gpu_hours: float

    @property
    def name(self) -> str:
        """The job's identity: kind, run (or corpus, figure), digests of its folder and key. The same in every plan."""
        return f"{self.family}.{_digest(self.task.key)}"

    @property
    def family(self) -> str:
        """The part of the name that other jobs of this kind for this run have, too, such as those with more evaluations."""
        return f"{self.task.kind}-{self.task.about}.{_digest(str(self.task.folder))}"

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def jobs(plan: Plan, cluster: Cluster) -> list[Job]:
    """Return the jobs that are not done, each after those that it needs. Raises ValueError if a training cannot be split among
    its processes, and for timings if the cluster file does not name the machine."""
    tasks = graph.tasks(plan)
    if cluster.machine == UNNAMED and any(task.kind == "time" for task in tasks):
        example = 'machine = "NVIDIA H100 80GB HBM3" (slurm/clusters/README.md says how to find it)'
        raise ValueError(f"timings belong to one kind of machine: name it in the cluster file, such as {example}.")
    return [_job(plan, task, cluster) for task in sorted(tasks, key=lambda task: KINDS.index(task.kind))]


def _job(plan: Plan, task: Planned, cluster: Cluster) -> Job:
    if task.kind == "train":
        assert task.run is not None
        wanted = _for_training(task, task.run, cluster)
        return replace(wanted, task=graph.train_task(plan, task.run, wanted.nodes * wanted.tasks_per_node))
    gpus = getattr(cluster, task.kind).gpus
    if gpus is None:
        gpus = int(cluster.gpus_per_node > 0 and task.kind in ("evaluate", "time"))
    made = [] if task.run is None else [spec for spec in task.run.missing_evals if task.run.eval_file(spec) in task.makes]
    hours = cluster.gpu_hours(eval_flops(task.run, made)) if task.run is not None else 0.0
    return Job(task, 1, 1, gpus, _minutes(cluster.hours(task.kind), task.kind, cluster), hours)


def _for_training(task: Planned, run: Run, cluster: Cluster) -> Job:
    """Return the job that trains `run`: its processes, and its estimated time with a margin, up to the cluster's limit. If the
    cluster file does not set the number of GPUs: the smallest power of two, within a node, that finishes in one start."""
    estimate, limit = cluster.gpu_hours(train_flops(run)), cluster.hours("train")
    gpus, nodes, tasks, hours = 0, cluster.train.nodes, cluster.train.tasks, limit
    if cluster.gpus_per_node:
        total, gpus = estimate * cluster.margin, cluster.train.gpus or 1
        while not cluster.train.gpus and gpus * 2 <= cluster.gpus_per_node and total / gpus + START_HOURS > limit:
            gpus *= 2
        nodes, tasks = math.ceil(gpus / cluster.gpus_per_node), gpus
        hours = max(MIN_HOURS, total / gpus + START_HOURS)
    train = run.spec.train
    if train.num_pieces % tasks:
        name = "train.gpus" if gpus else "train.tasks"
        reason = f"a step of {run.spec.name} has {train.num_pieces} {train.pieces}"
        raise ValueError(f"{name} {tasks}: {reason}; choose a divisor of {train.num_pieces}.")
    return Job(task, nodes, tasks // nodes, gpus // nodes, _minutes(hours, "train", cluster), estimate)


def _minutes(hours: float, kind: str, cluster: Cluster) -> int:
    shortest = 2 * cluster.signal_seconds / 3600
    return max(1, math.ceil(60 * min(max(hours, shortest), cluster.hours(kind)) - 1e-9))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


class Executor(submitit.SlurmExecutor):
    """submitit's executor, also for a dry run without SLURM, and for sites where `module` needs a login shell."""

    login_shell = False

    @classmethod
    def affinity(cls) -> int:
        return 1

    def script(self) -> str:
        return self._make_submission_file_text(self._submitit_command_str, "")

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        text = super()._make_submission_file_text(command, uid)
        return text.replace("#!/bin/bash", "#!/bin/bash -l", 1) if self.login_shell else text


def folder(job: Job, cluster: Cluster) -> Path:
    """Return the folder of a job's pickle, script and output, which submitit names by SLURM's id."""
    return cluster.scratch / "jobs" / job.name


def executor(job: Job, cluster: Cluster, code: Path, dependency: str) -> Executor:
    """Return what submits a job. It runs in the folder that it is submitted from, with the code in `code`."""
    settings = cluster.settings(job.task.kind)
    cpus, memory = settings.cpus_per_task or 1, settings.mem_gb_per_task
    typed = f"{settings.gpu_type}:{job.gpus_per_node}" if settings.gpu_type else str(job.gpus_per_node)
    gpus = f"gpu:{typed}" if cluster.gpu_option == "gres" else typed
    sbatch = {
        **{name: getattr(settings, name) for name in ("partition", "account", "qos", "constraint")},
        "cpus-per-task": cpus,
        "mem": None if memory is None else f"{math.ceil(1024 * memory * job.tasks_per_node)}M",
        cluster.gpu_option: gpus if job.gpus_per_node else None,
        "exclusive": job.task.kind == "time" and cluster.device == "cpu",
        "dependency": dependency or None,
        "kill-on-invalid-dep": "yes" if dependency else None,
        "requeue": True,
        **settings.sbatch,
    }
    # One process that dies takes the others along. srun does not inherit cpus-per-task.
    srun = {"kill-on-bad-exit": 1, "export": "ALL", "cpus-per-task": cpus, **settings.srun}
    environment = {**({"OMP_NUM_THREADS": "1"} if cluster.device == "cpu" else {}), **cluster.environment}
    # Jobs import the snapshot, and not the folder that they run in.
    environment |= {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    made = Executor(folder(job, cluster), max_num_timeout=10**6, python=cluster.launcher)
    made.login_shell = cluster.login_shell
    made.update_parameters(
        job_name=job.name, time=job.minutes, nodes=job.nodes, ntasks_per_node=job.tasks_per_node,
        signal_delay_s=cluster.signal_seconds, wckey=None, stderr_to_stdout=True, srun_args=_options(srun),
        setup=[
            *cluster.setup, *(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
            f'export PYTHONPATH={shlex.quote(str(code))}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        ],
        additional_parameters={name: value for name, value in sbatch.items() if value not in (None, False)},
    )  # fmt: skip
    return made


def attempt(job: Job, cluster: Cluster) -> Attempt:
    """Return what a job runs: its task, without the plan."""
    leave = min(LEAVE_S, cluster.signal_seconds / 3)
    return Attempt(Task(**{item.name: getattr(job.task, item.name) for item in fields(Task)}), cluster.signal_seconds - leave)


def dependency(job: Job, ids: Mapping[str, str], others: list[str]) -> str:
    """Return in sbatch's words what a job waits for: the jobs that it needs, by SLURM's id in `ids`, and `others`, that they
    end. A job that it needs and that has no id is done."""
    needs = [ids[key] for key in job.task.needs if key in ids]
    words = {"afterany" if job.task.kind == "draw" else "afterok": needs}
    words["afterany"] = [*words.get("afterany", []), *others]
    return ",".join(f"{word}:{':'.join(found)}" for word, found in words.items() if found)


def _options(options: dict[str, Any]) -> list[str]:
    given = ((name, value) for name, value in options.items() if value is not False)
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in given]
