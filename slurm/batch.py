"""From a group of jobs to an sbatch script, through submitit."""

import contextlib
import io
import shlex
import sys
from pathlib import Path
from typing import Any

from slurm.cluster import Cluster
from slurm.graph import Group
from slurm.launcher import Task
from slurm.records import Submission

ENDLESS = 10**6  # submitit counts time-outs down; trainings are requeued until they are done


def sbatch_parameters(
    group: Group, index: int, submission: Submission, cluster: Cluster, snapshot: Path, dependency: str | None
) -> dict[str, Any]:
    """submitit's parameters of one group. Jobs run in the folder they were submitted from, with the snapshot's code."""
    wanted = max((node.resources for node in group.nodes), key=lambda resources: resources.minutes)
    first = group.nodes[0]
    name = group.kind if len(group.nodes) > 1 else f"{group.kind}-{first.key.split(':')[1]}"
    optional = {
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "dependency": dependency,
        "gpus_per_node": wanted.gpus_per_node or None,
        "array_parallelism": cluster.max_concurrent,
    }
    if cluster.mem_gb_per_task is not None:
        optional["mem"] = f"{int(1024 * cluster.mem_gb_per_task * wanted.tasks_per_node)}MB"
    return {
        "job_name": name,
        "comment": submission.comment(index),
        "partition": cluster.partition,
        "time": wanted.minutes,
        "nodes": wanted.nodes,
        "ntasks_per_node": wanted.tasks_per_node,
        "cpus_per_task": cluster.cpus_per_task,
        "signal_delay_s": cluster.signal_seconds,
        "setup": _setup(cluster, snapshot),
        "teardown": [f"{_host_python(cluster)} -m slurm.epilogue {shlex.quote(str(submission.path))} {index} $?"],
        # srun does not take these over from sbatch; without the second one, tasks would wait for a dead one.
        "srun_args": [f"--cpus-per-task={cluster.cpus_per_task}", "--kill-on-bad-exit=1"],
        "additional_parameters": {
            "requeue": True,
            "kill-on-invalid-dep": "yes",
            "chdir": submission.values["cwd"],
            **cluster.sbatch,
        },
        **{name: value for name, value in optional.items() if value is not None},
    }


def _setup(cluster: Cluster, snapshot: Path) -> list[str]:
    environment = {"OMP_NUM_THREADS": "1"} if not cluster.gpus_per_node else {}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in {**environment, **cluster.environment}.items()]
    return [
        *cluster.setup,
        *exports,
        f'export PYTHONPATH={shlex.quote(str(snapshot))}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        "export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1  # the snapshot's code, not that of the working folder",
        "trap : TERM  # whoever ends this job, its epilogue below takes notice",
    ]


def _host_python(cluster: Cluster) -> str:
    return "python3" if cluster.container else shlex.quote(sys.executable)


def task_python(cluster: Cluster) -> str:
    return f"{cluster.container} python3" if cluster.container else shlex.quote(sys.executable)


def script(group: Group, folder: Path, cluster: Cluster, parameters: dict[str, Any]) -> str:
    """The sbatch script that submitit would submit; needs no SLURM."""
    from submitit.slurm.slurm import _make_sbatch_string

    command = f"{task_python(cluster)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    count = len(group.nodes) if len(group.nodes) > 1 else None
    return _make_sbatch_string(command=command, folder=folder, map_count=count, **parameters)


def sbatch(group: Group, folder: Path, cluster: Cluster, submission: Submission, parameters: dict[str, Any]) -> str:
    """Submit a group; returns SLURM's id of the job or array. ValueError with SLURM's own message."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    folder.mkdir(parents=True, exist_ok=True)
    executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=ENDLESS, python=task_python(cluster))
    executor.update_parameters(**parameters)
    try:
        # submitit passes on what sbatch prints; it is said once, below.
        with contextlib.redirect_stderr(io.StringIO()), executor.batch():
            jobs = [executor.submit(Task(str(submission.path), node.key)) for node in group.nodes]
        return jobs[0].job_id.split("_")[0]
    except (FailedJobError, FailedSubmissionError) as error:
        raise ValueError(_complaint(str(error))) from None


def _complaint(text: str) -> str:
    """What sbatch said, without submitit's stack."""
    lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if line.startswith("sbatch: error:")] or [line for line in lines if line][-1:]
    return "; ".join(line.removeprefix("sbatch: error: ").rstrip(".") for line in said)
