"""Requests of a job to SLURM: tasks, nodes, GPUs and time, from its task and the cluster's file."""

import math

from experiments.graph import Task
from experiments.overview import train_flops
from experiments.plan import Run
from slurm.cluster import Cluster
from slurm.job import Resources

START_HOURS = 0.25  # loading, compiling, saving
MIN_HOURS = 0.5


def train_gpu_hours(run: Run, cluster: Cluster) -> float:
    """GPU-hours of a training at the cluster's assumed MFU; 0 on a cluster without GPUs."""
    if cluster.gpu_tflops is None:
        return 0.0
    return train_flops(run) / (cluster.mfu * cluster.gpu_tflops * 1e12) / 3600


def of_task(task: Task, cluster: Cluster) -> Resources:
    """ValueError where a step's sequences cannot be shared among the processes of a training."""
    if task.kind == "train":
        assert task.run is not None
        return for_training(task.run, cluster)
    gpus = cluster.settings(task.kind).gpus
    if gpus is None:
        gpus = 1 if cluster.gpus_per_node and task.kind in ("evaluate", "time") else 0
    minutes = _minutes(cluster.hours(task.kind), task.kind, cluster)
    return Resources(1, 1, gpus, minutes, gpu_hours=gpus * minutes / 60)


def for_training(run: Run, cluster: Cluster) -> Resources:
    """Processes for `run`, and its estimated time with a margin, up to the cluster's limit."""
    estimate = train_gpu_hours(run, cluster)
    if cluster.gpus_per_node:
        hours = estimate * cluster.margin
        gpus = cluster.train.gpus or _enough_gpus(hours, cluster)
        nodes, tasks = math.ceil(gpus / cluster.gpus_per_node), gpus
        minutes = _minutes(max(MIN_HOURS, hours / gpus + START_HOURS), "train", cluster)
    else:
        gpus, nodes, tasks = 0, cluster.train.nodes, cluster.train.tasks
        minutes = _minutes(cluster.hours("train"), "train", cluster)
    batch = run.spec.train.batch_size
    if batch % tasks:
        name = "train.gpus" if gpus else "train.tasks"
        raise ValueError(f"{name} {tasks}: a step of {run.spec.name} has {batch} sequences; choose a divisor of {batch}.")
    return Resources(nodes, tasks // nodes, gpus // nodes, minutes, estimate)


def _enough_gpus(hours: float, cluster: Cluster) -> int:
    """The smallest power of two, within a node, that ends in one job; else the largest."""
    gpus = 1
    while gpus * 2 <= cluster.gpus_per_node and hours / gpus + START_HOURS > cluster.hours("train"):
        gpus *= 2
    return gpus


def _minutes(hours: float, kind: str, cluster: Cluster) -> int:
    shortest = 2 * cluster.signal_seconds / 3600
    return max(1, math.ceil(60 * min(max(hours, shortest), cluster.hours(kind)) - 1e-9))
