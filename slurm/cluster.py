"""Description of a cluster: a TOML file, read into frozen dataclasses and validated before anything is submitted.
slurm/clusters/README.md describes every field; its folder has examples to copy."""

import json
import os
import shlex
import sys
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from training.command_line import short

KINDS = ("prepare", "train", "evaluate", "time", "draw")
"""Kinds of jobs, each after those that it may need."""
HOURS = {"prepare": 12.0, "evaluate": 6.0, "time": 2.0, "draw": 1.0}
"""Default time limits of kinds of jobs; trainings ask for their estimated time."""
UNNAMED = "unnamed"
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
OURS = {
    "array", "chdir", "dependency", "error", "job-name", "nodes", "ntasks-per-node", "open-mode",
    "output", "signal", "time", "wrap",
}  # fmt: skip
"""Options that the job graph or another field of the file sets."""

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]


def _long_names(options: dict[str, Any]) -> dict[str, Any]:
    """Convert names to those of sbatch and srun: mail_type becomes mail-type."""
    found = {name.replace("_", "-"): value for name, value in options.items()}
    if ours := OURS & found.keys():
        raise ValueError(f"{', '.join(sorted(ours))}: set by the job graph or by a field of its own")
    return found


Options = Annotated[dict[str, str | bool | int | float], AfterValidator(_long_names)]
"""Further options of sbatch or srun by their long names: true passes the bare option, false removes ours."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Settings of all jobs, which the table of one kind of job can override."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_limit_hours: PositiveFloat | None = None
    cpus_per_task: PositiveInt | None = None
    mem_gb_per_task: PositiveFloat | None = None
    gpu_type: str | None = None
    sbatch: Options = Field(default_factory=dict)
    srun: Options = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class KindSettings(Settings):
    """`gpus` of one job of this kind; a training has one process per GPU, on several nodes if needed."""

    gpus: NonNegativeInt | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainSettings(KindSettings):
    """Without GPUs, `tasks` processes on `nodes` nodes train one run."""

    tasks: PositiveInt = 1
    nodes: PositiveInt = 1


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Cluster(Settings):
    """A cluster, and what its jobs may ask for."""

    time_limit_hours: PositiveFloat
    gpus_per_node: NonNegativeInt = 0
    gpu_option: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    gpu_tflops: PositiveFloat | None = None
    machine: str = UNNAMED
    mfu: Annotated[float, Field(gt=0, le=1)] = 0.4
    margin: Annotated[float, Field(ge=1)] = 1.3
    signal_seconds: PositiveInt = 300
    login_shell: bool = False
    setup: tuple[str, ...] = ()
    container: str | None = None
    python: str | None = None
    environment: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    scratch: Path = Path("slurm_jobs")
    prepare: KindSettings = Field(default_factory=KindSettings)
    train: TrainSettings = Field(default_factory=TrainSettings)
    evaluate: KindSettings = Field(default_factory=KindSettings)
    time: KindSettings = Field(default_factory=KindSettings)
    draw: KindSettings = Field(default_factory=KindSettings)

    def __post_init__(self) -> None:
        train, per_node = self.train, self.gpus_per_node
        if per_node and self.gpu_tflops is None:
            raise ValueError("gpus_per_node needs gpu_tflops, the dense bf16 rate of one GPU (H100: 989, A100: 312)")
        if per_node and (train.tasks > 1 or train.nodes > 1):
            raise ValueError("train.tasks and train.nodes are for clusters without GPUs; set train.gpus")
        if train.tasks % train.nodes:
            raise ValueError(f"train.tasks {train.tasks} is not a multiple of train.nodes {train.nodes}")
        for kind in KINDS:
            gpus, shortest = getattr(self, kind).gpus or 0, self.signal_seconds / 3600
            if gpus > per_node and (kind != "train" or not per_node or gpus % per_node):
                raise ValueError(f"{kind}.gpus {gpus} does not fit gpus_per_node {per_node}")
            if self.hours(kind) <= shortest:
                raise ValueError(f"time_limit_hours {self.hours(kind):g} of {kind} is within signal_seconds")

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        return "cuda" if self.gpus_per_node else "cpu"

    @property
    def launcher(self) -> str:
        """The python of the jobs, as a shell command: the file's, else that of `setup` or of the container, else this one."""
        own = "python3" if self.setup or self.container else shlex.quote(sys.executable)
        return " ".join(filter(None, (self.container, self.python or own)))

    def hours(self, kind: str) -> float:
        """Return the longest time that a job of this kind may ask for."""
        own = getattr(self, kind).time_limit_hours
        return own if own is not None else min(HOURS.get(kind, self.time_limit_hours), self.time_limit_hours)

    def gpu_hours(self, flops: float) -> float:
        """Convert FLOPs to GPU-hours at the expected share of the GPU's peak; 0 on a cluster without GPUs."""
        return flops / (self.mfu * self.gpu_tflops * 3600e12) if self.gpu_tflops else 0.0

    def settings(self, kind: str) -> Settings:
        """Return the settings for jobs of this kind: its own table overrides those of all jobs."""
        own, merged = getattr(self, kind), dict[str, Any]()
        for name in (item.name for item in fields(Settings)):
            given, general = getattr(own, name), getattr(self, name)
            merged[name] = {**general, **given} if isinstance(general, dict) else general if given is None else given
        return Settings(**merged)


CLUSTER: TypeAdapter[Cluster] = TypeAdapter(Cluster)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster's TOML file; `~` and `$NAME` in `scratch` are expanded. Raises a ValueError of one line for a mistake."""
    try:
        values = tomllib.loads(path.read_text())
        if isinstance(scratch := values.get("scratch"), str):
            values["scratch"] = os.path.expandvars(os.path.expanduser(scratch))
        cluster = CLUSTER.validate_json(json.dumps(values, default=str))
    except OSError as error:
        raise ValueError(f"--cluster {path}: {error.strerror}; slurm/clusters has files to copy and edit.") from None
    except ValidationError as error:
        raise ValueError(f"--cluster {path}: {short(error)}; slurm/clusters/README.md has every field.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--cluster {path} is not TOML: {error}.") from None
    if "$" in str(cluster.scratch):
        raise ValueError(f"--cluster {path}: scratch {cluster.scratch} names a variable that is not set here.")
    return replace(cluster, scratch=cluster.scratch.absolute())
