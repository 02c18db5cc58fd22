"""Description of a cluster: a TOML file, read into frozen dataclasses and validated before anything is submitted.
slurm/clusters/README.md describes every field; its folder has examples to copy."""

import json
import os
import re
import subprocess
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from training.command_line import short

KINDS = ("prepare", "train", "evaluate", "time", "draw")
HOURS = {"prepare": 12.0, "evaluate": 6.0, "time": 2.0, "draw": 1.0}
"""Default time limits of kinds of jobs; trainings ask for their estimated time."""
UNNAMED = "unnamed"
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
OURS = {
    "array", "dependency", "error", "open-mode", "ntasks-per-node", "output", "parsable", "signal", "test-only", "wait", "wrap",
}  # fmt: skip
"""Options that the job graph relies on, which a cluster file cannot set."""

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]


def _one_line(text: str) -> str:
    if "\n" in text or "\r" in text:
        raise ValueError(f"{text!r} has a line break")
    return text


Name = Annotated[str, Field(min_length=1), AfterValidator(_one_line)]


def _long_names(options: dict[str, Any]) -> dict[str, Any]:
    """Convert names to those of sbatch and srun: mail_type becomes mail-type."""
    found = {name.replace("_", "-"): value for name, value in options.items()}
    for name, value in found.items():
        if not re.fullmatch("[a-z][a-z0-9-]+", name):
            raise ValueError(f"{name!r} is not a long option; write it without leading dashes, such as mail-type")
        if name in OURS:
            raise ValueError(f"{name} is used by the job graph and cannot be set")
        if "\n" in str(value):
            raise ValueError(f"{name} {value!r} has a line break, which an #SBATCH line cannot hold")
        if name == "clusters":
            raise ValueError("clusters must hold for all of SLURM's commands: export SLURM_CLUSTERS=NAME in your shell instead")
    return found


Options = Annotated[dict[str, str | bool | int | float], AfterValidator(_long_names)]
"""Further options of sbatch or srun, by their long names: true passes the bare option, false removes ours."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Settings of all jobs, which the table of one kind of job can override."""

    partition: Name | None = None
    account: Name | None = None
    qos: Name | None = None
    constraint: Name | None = None
    time_limit_hours: PositiveFloat | None = None
    cpus_per_task: PositiveInt | None = None
    mem_gb_per_task: PositiveFloat | None = None
    gpu_type: Name | None = None
    sbatch: Options = Field(default_factory=dict)
    srun: Options = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class KindSettings(Settings):
    """`gpus` of one job of this kind; a training has one process per GPU, over several nodes if needed."""

    gpus: NonNegativeInt | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainSettings(KindSettings):
    """Without GPUs, `tasks` processes on `nodes` train one run. The other fields are options of `run`, which override these."""

    tasks: PositiveInt = 1
    nodes: PositiveInt = 1
    async_checkpoint: bool | None = None
    keep_checkpoints: PositiveInt | None = None
    max_hours: PositiveFloat | None = None
    spike_factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Cluster(Settings):
    """A cluster, and what its jobs may ask for. Its fields are described in slurm/clusters/README.md."""

    gpus_per_node: NonNegativeInt = 0
    gpu_option: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    gpu_tflops: PositiveFloat | None = None
    machine: Name = UNNAMED
    mfu: Annotated[float, Field(gt=0, le=1)] = 0.35
    margin: Annotated[float, Field(ge=1)] = 1.3
    signal_seconds: PositiveInt = 300
    max_concurrent: PositiveInt | None = None
    max_restarts: NonNegativeInt = 3
    arrays: bool = True
    submit_minutes: PositiveFloat = 15.0
    setup: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    container: Name | None = None
    python: Name | None = None
    environment: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    scratch: Path = Path("slurm_jobs")
    prepare: KindSettings = Field(default_factory=KindSettings)
    train: TrainSettings = Field(default_factory=TrainSettings)
    evaluate: KindSettings = Field(default_factory=KindSettings)
    time: KindSettings = Field(default_factory=KindSettings)
    draw: KindSettings = Field(default_factory=KindSettings)

    def __post_init__(self) -> None:
        if self.time_limit_hours is None:
            raise ValueError("time_limit_hours: missing; the longest a job may ask for")
        if self.gpus_per_node and self.gpu_tflops is None:
            raise ValueError("gpus_per_node needs gpu_tflops, the dense bf16 rate of one GPU (H100: 989, A100: 312)")
        train, per_node = self.train, self.gpus_per_node
        if per_node and (train.tasks > 1 or train.nodes > 1):
            raise ValueError("train.tasks and train.nodes are for clusters without GPUs; set train.gpus")
        if train.tasks % train.nodes:
            raise ValueError(f"train.tasks {train.tasks} is not a multiple of train.nodes {train.nodes}")
        for kind in KINDS:
            gpus = getattr(self, kind).gpus or 0
            if per_node and kind in ("train", "evaluate") and getattr(self, kind).gpus == 0:
                raise ValueError(f"{kind}.gpus 0 on a cluster with GPUs, where this needs one; leave it unset")
            if gpus and not per_node:
                raise ValueError(f"{kind}.gpus {gpus} on a cluster with gpus_per_node 0")
            if gpus > per_node and (kind != "train" or gpus % per_node):
                rule = "not a multiple of" if kind == "train" else "above"
                raise ValueError(f"{kind}.gpus {gpus} is {rule} gpus_per_node {per_node}")
            hours, seconds = self.hours(kind), self.signal_seconds
            if hours * 3600 <= seconds:
                raise ValueError(f"time_limit_hours {hours:g} of {kind} is no longer than signal_seconds {seconds}")
            if {"comment", "job-name"} <= self.settings(kind).sbatch.keys():
                raise ValueError("sbatch sets both comment and job-name; leave one unset, as our jobs are recognised by it")

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        return "cuda" if self.gpus_per_node else "cpu"

    def hours(self, kind: str) -> float:
        """Return the longest time that a job of this kind may ask for."""
        assert self.time_limit_hours is not None
        own = getattr(self, kind).time_limit_hours
        return own if own is not None else min(HOURS.get(kind, self.time_limit_hours), self.time_limit_hours)

    def settings(self, kind: str) -> KindSettings:
        """Return the settings for jobs of this kind: its own table overrides those of all jobs. Settings of timings default to
        those of evaluations."""
        base, own = self.settings("evaluate") if kind == "time" else self, getattr(self, kind)
        merged: dict[str, Any] = {}
        for name in (item.name for item in fields(KindSettings)):
            given, general = getattr(own, name), getattr(base, name, None)
            merged[name] = {**general, **given} if isinstance(general, dict) else general if given is None else given
        return replace(own, **{**merged, "time_limit_hours": self.hours(kind)})


CLUSTER: TypeAdapter[Cluster] = TypeAdapter(Cluster)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster's TOML file, with `~` and `$NAME` in `scratch` expanded and its path absolute. Raises a ValueError of one
    line for a mistake."""
    try:
        values = tomllib.loads(path.read_text())
        if isinstance(scratch := values.get("scratch"), str):
            values["scratch"] = scratch = os.path.expandvars(os.path.expanduser(scratch))
            if "$" in scratch:
                raise ValueError(f"--cluster {path}: scratch: {scratch} names a variable that is not set in this shell.")
        cluster = CLUSTER.validate_json(json.dumps(values, default=str))
    except OSError as error:
        missing = "no such file; slurm/clusters has some to copy and edit"
        said = missing if isinstance(error, FileNotFoundError) else error.strerror
        raise ValueError(f"--cluster {path}: {said}.") from None
    except ValidationError as error:
        raise ValueError(f"--cluster {path}: {_mistake(error)}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"--cluster {path} is not TOML: {error}.") from None
    commands = [*(("setup", line) for line in cluster.setup), ("container", cluster.container), ("python", cluster.python)]
    for name, line in ((name, line) for name, line in commands if line is not None):
        read = subprocess.run(
            ["/bin/bash", "-O", "extglob", "-n", "-c", line], capture_output=True, text=True, errors="replace"
        )
        if read.returncode:
            raise ValueError(
                f"--cluster {path}: {name}: {line!r} is no complete command: {read.stderr.strip().splitlines()[0]}."
            )
    return replace(cluster, scratch=cluster.scratch.absolute())


def _mistake(error: ValidationError) -> str:
    """Describe the first mistake: its place, what is wrong, and the value."""
    first = error.errors()[0]
    if first["type"] != "unexpected_keyword_argument":
        return short(error)
    places = first["loc"]
    table = Cluster if len(places) == 1 else TrainSettings if places[0] == "train" else KindSettings
    return f"{'.'.join(map(str, places))}: no such key; the keys are {', '.join(item.name for item in fields(table))}"
