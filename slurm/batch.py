"""The sbatch script of a batch of jobs: plain bash that the cluster's administrators can read."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from slurm.client import spans
from slurm.cluster import Cluster, KindSettings
from slurm.job import Submission

MEMORY = {"mem", "mem-per-cpu", "mem-per-gpu"}
GPUS = {"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"}
TEMPLATE = Path(__file__).parent / "job.sh"
LEAVE_S = 60
"""Seconds before the time limit that a batch script reserves for itself."""


def script(submission: Submission, entry: int, cluster: Cluster, code: Path, throttle: int | None) -> str:
    """Return the sbatch script of one of a submission's batches: slurm/job.sh, filled in. Jobs run in the folder they were
    submitted from, with the snapshot `code`."""
    batch = submission.batches[entry]
    settings, python = cluster.settings(batch.kind), task_python(cluster)
    options = _merged(_sbatch_options(submission, entry, cluster, throttle), settings.sbatch)
    srun = _merged({"export": "ALL", "kill-on-bad-exit": 1}, settings.srun)  # else tasks would wait for a dead one
    environment = {**({"OMP_NUM_THREADS": "1"} if cluster.device == "cpu" else {}), **cluster.environment}
    values = {
        "OPTIONS": [f"#SBATCH {_option(*item)}" for item in options.items()],
        "TASKS": [f"#   {'' if batch.single else f'{at:<4}'}{submission.jobs[key].name}" for at, key in batch.keys.items()],
        "SETUP": [f"{line}\n[ $? -eq 0 ] || stop {shlex.quote('setup failed: ' + line)}" for line in cluster.setup]
                 + [f"export {name}={shlex.quote(value)}" for name, value in environment.items()],
        "COMMAND": [" ".join(["srun", *(_option(*item) for item in srun.items()), *filter(None, [cluster.container]), python])],
        "RECORD": [shlex.quote(str(submission.path))],
        "ENTRY": [str(entry)],
        "CODE": [shlex.quote(str(code))],
        "PLACES": [shlex.join(filter(os.path.exists, (submission.request["results_dir"], submission.request["corpora_dir"])))],
        "HOST_PYTHON": ["python3" if cluster.container else python],
        "SHOWN_PYTHON": ["of the container" if cluster.container else f"$(command -v {python})"],
        "SIGNAL_S": [str(cluster.signal_seconds)],
        "PATIENCE_S": [str(cluster.signal_seconds - min(LEAVE_S, cluster.signal_seconds // 3))],
    }  # fmt: skip
    text = TEMPLATE.read_text()
    for name, lines in values.items():
        text = text.replace(f"@{name}@" + ("" if lines else "\n"), "\n".join(lines))
    return text


def task_python(cluster: Cluster) -> str:
    """Return the python of the tasks: the cluster file's, else that of `setup` or the container, else the submitting one."""
    return cluster.python or ("python3" if cluster.setup or cluster.container else shlex.quote(sys.executable))


def _sbatch_options(submission: Submission, entry: int, cluster: Cluster, throttle: int | None) -> dict[str, Any]:
    batch = submission.batches[entry]
    settings, sizes = cluster.settings(batch.kind), [submission.jobs[key].resources for key in batch.keys.values()]
    size, base = sizes[0], batch.logs.replace("%", "%%")
    options: dict[str, Any] = {
        "job-name": submission.job_name(entry),
        "comment": f"fox{submission.mark(entry)}",
        **{name: getattr(settings, name) for name in ("partition", "account", "qos", "constraint")},
        "array": None if batch.single else _array(list(batch.keys), throttle),
        "dependency": batch.dependency,
        "kill-on-invalid-dep": "yes" if batch.dependency else None,
        "nodes": size.nodes,
        "ntasks-per-node": size.tasks_per_node,
        "cpus-per-task": settings.cpus_per_task or 1,
        "mem": _memory(settings.mem_gb_per_task, size.tasks_per_node * size.memory),
        **_gpus(size.gpus_per_node, settings, cluster),
        "exclusive": True if batch.kind == "time" and cluster.device == "cpu" else None,
        "time": _hours(max(size.minutes for size in sizes)),
        "signal": f"B:USR2@{cluster.signal_seconds}",
        "requeue": True,
        "export": "ALL",
        "open-mode": "append",
        "output": base + ("%j.log" if batch.single else "%A_%a.log"),
        "chdir": submission.cwd,
    }
    return {name: value for name, value in options.items() if value is not None}


def _memory(gb_per_task: float | None, tasks: float) -> str | None:
    mb = int(1024 * (gb_per_task or 0) * tasks)
    return None if gb_per_task is None else f"{mb}M" if mb % 1024 else f"{mb // 1024}G"


def _hours(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}:00"


def _gpus(count: int, settings: KindSettings, cluster: Cluster) -> dict[str, str]:
    typed = f"{settings.gpu_type}:{count}" if settings.gpu_type else str(count)
    named = {"gres": f"gpu:{typed}"} if cluster.gpu_option == "gres" else {"gpus-per-node": typed}
    return named if count else {}


def _array(indices: list[int], throttle: int | None) -> str:
    """Print indices as 0-6, or 3,7-9, with a throttle as %4."""
    return spans(indices) + (f"%{throttle}" if throttle is not None and throttle < len(indices) else "")


def _merged(ours: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Merge options: the cluster file's override ours, and so does another way to ask for memory or GPUs."""
    gres = str(given.get("gres") or "")
    dropped = {name for alike in (MEMORY, GPUS) for name in alike if alike & given.keys()}
    dropped |= GPUS if "gpu" in gres else {"gres"} if GPUS & given.keys() and not gres else set()
    if "gres" in ours and gres and "gpu" not in gres:
        given = {**given, "gres": f"{ours['gres']},{gres}"}
    merged = {name: value for name, value in ours.items() if name not in dropped} | given
    return {name: value for name, value in merged.items() if value is not False}


def _option(name: str, value: Any) -> str:
    return f"--{name}" if value is True else f"--{name}={shlex.quote(str(value))}"
