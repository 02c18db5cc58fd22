"""What one has to know of a cluster: a TOML file, read into a frozen dataclass and checked before anything is submitted.

slurm/clusters/example.toml is a commented file for a cluster of 8-GPU nodes.
"""

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class Cluster:
    """Where jobs go and what they may ask for. `scratch` holds code snapshots and submitit's files; every node must see it."""

    partition: Name
    account: Name | None = None
    qos: Name | None = None
    constraint: Name | None = None
    sbatch: dict[str, str] = Field(default_factory=dict)
    """Further options of sbatch, such as {reservation = "paper"}."""

    gpus_per_node: NonNegativeInt = 0
    """0: a cluster without GPUs; a run is then trained by `tasks_per_run` processes on CPUs."""
    gpu_tflops: PositiveFloat | None = None
    """Dense bf16 TFLOP/s of one GPU by its datasheet; hours are estimated from it."""
    mfu: Share = 0.35
    """Share of that rate a training is expected to reach."""
    gpus_per_run: PositiveInt | None = None
    """GPUs that train one run, over several nodes if need be; left out: as many of one node's as the time limit calls for."""
    tasks_per_run: PositiveInt = 1
    """Without GPUs: processes that train one run."""
    nodes_per_run: PositiveInt = 1
    """Without GPUs: nodes over which those processes are spread."""
    cpus_per_task: PositiveInt = 1
    mem_gb_per_task: PositiveFloat | None = None

    time_limit_hours: PositiveFloat
    """The longest a job may ask for. Longer trainings save, are requeued and go on."""
    margin: Annotated[float, Field(ge=1)] = 1.3
    """Jobs ask for this many times the estimated hours, up to the limit."""
    eval_hours: PositiveFloat = 6.0
    """Hours for the evaluations of one run (they, too, are requeued and go on)."""
    signal_seconds: PositiveInt = 300
    """How long before its time limit a job is told to save."""
    max_concurrent: PositiveInt | None = None
    """At most so many trainings, and so many evaluations, at a time."""
    max_restarts: NonNegativeInt = 3
    """How often in a row a job is started again without having got any further."""

    setup: tuple[str, ...] = ()
    """Shell lines at the start of each job: `module load ...`, `source .venv/bin/activate`."""
    container: Name | None = None
    """Command before python in each task, such as `apptainer exec --nv image.sif`; its python must have the requirements."""
    environment: dict[str, str] = Field(default_factory=dict)
    scratch: Path = Path("slurm_jobs")

    @model_validator(mode="after")
    def _check(self) -> "Cluster":
        if self.gpus_per_node and self.gpu_tflops is None:
            raise ValueError("gpus_per_node needs gpu_tflops, the dense bf16 rate of one GPU (H100: 989, A100: 312)")
        if self.gpus_per_run is not None:
            if not self.gpus_per_node:
                raise ValueError(f"gpus_per_run {self.gpus_per_run} on a cluster with gpus_per_node 0; say tasks_per_run")
            if self.gpus_per_run > self.gpus_per_node and self.gpus_per_run % self.gpus_per_node:
                raise ValueError(f"gpus_per_run {self.gpus_per_run} is not a multiple of gpus_per_node {self.gpus_per_node}")
        if self.gpus_per_node and (self.tasks_per_run > 1 or self.nodes_per_run > 1):
            raise ValueError("tasks_per_run and nodes_per_run are for clusters without GPUs; say gpus_per_run")
        if self.tasks_per_run % self.nodes_per_run:
            raise ValueError(f"tasks_per_run {self.tasks_per_run} is not a multiple of nodes_per_run {self.nodes_per_run}")
        for name in ("time_limit_hours", "eval_hours"):
            if getattr(self, name) * 3600 <= self.signal_seconds:
                raise ValueError(f"{name} {getattr(self, name)} is no longer than signal_seconds {self.signal_seconds}")
        if self.eval_hours > self.time_limit_hours:
            raise ValueError(f"eval_hours {self.eval_hours} exceeds time_limit_hours {self.time_limit_hours}")
        return self

    @property
    def device(self) -> str:
        return "cuda" if self.gpus_per_node else "cpu"


CLUSTER: TypeAdapter[Cluster] = TypeAdapter(Cluster)


def read_cluster(path: Path) -> Cluster:
    """The cluster of a TOML file; `~` and `$NAME` in `scratch` are filled in. ValueError of one line for whatever is wrong."""
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"--cluster {path}: no such file; slurm/clusters/example.toml is one to copy and edit.") from None
    except OSError as error:
        raise ValueError(f"--cluster {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--cluster {path} is not TOML: {error}.") from None
    if isinstance(values.get("scratch"), str):
        values["scratch"] = os.path.expandvars(os.path.expanduser(values["scratch"]))
    try:
        return CLUSTER.validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "Cluster")
        what = {"unexpected_keyword_argument": "no such key", "missing": "missing"}.get(first["type"])
        what = what or first["msg"].removeprefix("Value error, ")
        given = f" (given: {first['input']!r})" if where and isinstance(first["input"], str | int | float | bool) else ""
        if first["type"] == "unexpected_keyword_argument":
            given = f"; the keys are {', '.join(Cluster.__dataclass_fields__)}"
        raise ValueError(f"--cluster {path}: {where + ': ' if where else ''}{what}{given}.") from None
