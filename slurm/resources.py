"""What a job asks SLURM for: tasks, nodes, memory and time, from a run's spec and the cluster's file."""

import math
from dataclasses import dataclass

from experiments.overview import train_flops
from experiments.plan import Run
from slurm.cluster import Cluster

START_HOURS = 0.25  # loading, compiling, saving
MIN_HOURS = 0.5
DRAW_HOURS = 1.0


@dataclass(frozen=True)
class Resources:
    """Of one job. One task is one process; on a GPU cluster it has one GPU."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    minutes: int

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


def train_gpu_hours(run: Run, cluster: Cluster) -> float | None:
    """GPU-hours of a training at the cluster's assumed MFU; None on a cluster without GPUs."""
    if cluster.gpu_tflops is None:
        return None
    return train_flops(run) / (cluster.mfu * cluster.gpu_tflops * 1e12) / 3600


def for_training(run: Run, cluster: Cluster) -> Resources:
    """Tasks for `run`, and its estimated time with a margin, up to the cluster's limit.

    ValueError where a step's sequences cannot be shared among the tasks.
    """
    gpu_hours = train_gpu_hours(run, cluster)
    if gpu_hours is None:
        nodes, tasks, gpus, hours = cluster.nodes_per_run, cluster.tasks_per_run, 0, cluster.time_limit_hours
    else:
        gpus = cluster.gpus_per_run or _enough_gpus(gpu_hours * cluster.margin, cluster)
        nodes, tasks = math.ceil(gpus / cluster.gpus_per_node), gpus
        hours = max(MIN_HOURS, gpu_hours / gpus * cluster.margin + START_HOURS)
    batch = run.spec.train.batch_size
    if batch % tasks:
        name = "gpus_per_run" if gpus else "tasks_per_run"
        raise ValueError(f"{name} {tasks}: a step of {run.spec.name} has {batch} sequences; choose a divisor of {batch}.")
    return Resources(nodes, tasks // nodes, gpus // nodes, _minutes(hours, cluster))


def for_evaluation(cluster: Cluster) -> Resources:
    return Resources(1, 1, min(cluster.gpus_per_node, 1), _minutes(cluster.eval_hours, cluster))


def for_preparing(cluster: Cluster) -> Resources:
    """One task that tokenises, without a GPU."""
    return Resources(1, 1, 0, _minutes(cluster.time_limit_hours, cluster))


def for_drawing(cluster: Cluster) -> Resources:
    return Resources(1, 1, 0, _minutes(DRAW_HOURS, cluster))


def _enough_gpus(gpu_hours: float, cluster: Cluster) -> int:
    """The smallest power of two, within a node, that ends in one job; else the largest."""
    gpus = 1
    while gpus * 2 <= cluster.gpus_per_node and gpu_hours / gpus + START_HOURS > cluster.time_limit_hours:
        gpus *= 2
    return gpus


def _minutes(hours: float, cluster: Cluster) -> int:
    shortest = 2 * cluster.signal_seconds / 3600
    return max(1, math.ceil(60 * min(max(hours, shortest), cluster.time_limit_hours) - 1e-9))
