"""Spec of a run, without torch: model, data, optimisation and seed, and the identity that follows from them."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from data.spec import DataSpec
from models.spec import ModelSpec
from models.spec_parts import ModelKind, NonNegativeInt, PositiveFloat, PositiveInt, strict

MAX_SEED = 2**63
"""Seeds must be below it: the limit of torch's and numpy's generators."""
GRAPH_PARTS = 4
"""Micro-batches up to which a step is captured as a CUDA graph: with more, the GPU is busy without one, too."""
NonNegativeFloat = Annotated[float, Field(ge=0)]
Parallel = Literal["ddp", "fsdp", "hsdp"]


@strict
class TrainSpec:
    """Optimisation of one run; every length and interval is in tokens (paper, section 4 and Appendix B).

    `precision`: "bf16" is autocast with fp32 master weights. `grad_reduce`: dtype in which gradients are summed over
    processes (the released setup reduced in bf16). `piece_len`: tokens that are read of a text in one piece, then
    cut into sequences, so that runs with short and long sequences see the same text in every step; None: one sequence.
    `order_seed`: seed of the order of documents; 0: as they are stored."""

    seq_len: PositiveInt
    batch_tokens: PositiveInt
    train_tokens: PositiveInt
    warmup_tokens: NonNegativeInt
    peak_lr: PositiveFloat
    weight_decay: NonNegativeFloat = 0.1
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    adam_eps: PositiveFloat = 1e-8
    grad_clip: PositiveFloat = 1.0
    precision: Literal["fp32", "bf16"] = "bf16"
    grad_reduce: Literal["fp32", "bf16"] = "fp32"
    piece_len: PositiveInt | None = None
    order_seed: Annotated[int, Field(ge=0, lt=MAX_SEED)] = 0

    def __post_init__(self) -> None:
        cut = (("batch_tokens", "piece_len"), ("piece_len", "seq_len")) if self.piece_len else ()
        for whole, part in (("batch_tokens", "seq_len"), ("train_tokens", "batch_tokens"), *cut):
            if getattr(self, whole) % getattr(self, part):
                raise ValueError(f"{whole} {getattr(self, whole)} is not a multiple of {part} {getattr(self, part)}")
        if self.warmup_tokens >= self.train_tokens:
            raise ValueError(f"warmup_tokens {self.warmup_tokens} must be below train_tokens {self.train_tokens}")

    @property
    def batch_size(self) -> int:
        """Sequences per step, over all processes."""
        return self.batch_tokens // self.seq_len

    @property
    def piece(self) -> int:
        """Tokens that are read of a text in one piece."""
        return self.piece_len or self.seq_len

    @property
    def num_pieces(self) -> int:
        """Pieces per step, each of which is read by one process."""
        return self.batch_tokens // self.piece

    @property
    def pieces(self) -> str:
        """Name of the pieces, for messages."""
        return "sequences" if self.piece == self.seq_len else f"pieces of text of {self.piece} tokens"

    @property
    def num_steps(self) -> int:
        return self.train_tokens // self.batch_tokens


@strict
class RunSpec:
    """One training run. `name` and `scale` are labels; the identity is what changes the result.

    `weights`: digest of weights that were trained elsewhere and adopted (`python -m experiments adopt`); None: trained here."""

    name: str
    scale: str
    model: ModelSpec
    data: DataSpec
    train: TrainSpec
    seed: Annotated[int, Field(ge=0, lt=MAX_SEED)] = 0
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.model.vocab_size < self.data.vocab_size:
            raise ValueError(f"model vocab_size {self.model.vocab_size} is smaller than the tokeniser's {self.data.vocab_size}")
        for name, part in (("seq_len", self.train.seq_len), ("piece_len", self.train.piece)):
            if self.data.document_len % part:
                raise ValueError(f"document_len {self.data.document_len} is not a multiple of {name} {part}")

    @property
    def run_id(self) -> str:
        """Return the first 10 hex digits of the SHA-256 of everything that changes the result. Fields at their default are left
        out, so that a field added later renames no run. So defaults never change, and a scale states all its values."""
        identity = {
            "format": 2,
            "model": {"kind": self.model.kind, **_changed(self.model)},
            "data": _changed(self.data),
            "train": _changed(self.train),
            "seed": self.seed,
            **({} if self.weights is None else {"weights": self.weights}),
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def folder_name(self) -> str:
        """Name of the run folder below runs/SCALE/."""
        return f"{self.name}-{self.run_id}"

    def to_json(self) -> str:
        return RUN_SPEC.dump_json(self, indent=2).decode() + "\n"

    @staticmethod
    def from_json(text: str) -> "RunSpec":
        """Read a spec. Raises pydantic.ValidationError (a ValueError) that names the offending key and value."""
        return RUN_SPEC.validate_json(text)


@strict
class Execution:
    """Ways to execute a run. Apart from skipped steps, none changes its result beyond rounding; none is in its identity."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one, but `experiments` uses CPUs for the scales in fp32 (tiny)."""
    micro_batch_tokens: PositiveInt | None = None
    """Tokens per forward pass and process: more is faster and takes memory; default: a whole step, or the scale's value.
    Sizes differ in rounding, as matrix products add up over tokens."""
    parallel: Parallel = "ddp"
    """With several processes: replicate the model (ddp), or shard parameters, gradients and optimiser state over all
    processes (fsdp) or within each node (hsdp)."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """torch.compile the layers. auto: `python -m experiments` does on CUDA, if the scale says so and the model gains by it, and
    not with --activation-checkpointing; `python -m training` does not."""
    deterministic: bool = True
    """Bitwise equal results from run to run on a GPU: no autotuning, and operations that cannot repeat raise an error. 2, 4,
    8, ... processes (ddp, fp32 sums, equal micro-batches) have the bits of one; other numbers, fsdp and hsdp have others."""
    cuda_graph: bool = True
    """Launch a step's forward and backward pass as one CUDA graph: the same bits, and the GPU does not wait for the host. With
    one process, at most four micro-batches a step, and no activation checkpointing."""
    activation_checkpointing: bool = False
    """Recompute each block's attention and MLP in the backward pass, for GPUs below 48 GiB at 760M."""
    checkpoint_minutes: NonNegativeFloat = 10.0
    """Minutes of wall clock between checkpoints; 0 saves after every step."""
    keep_checkpoints: PositiveInt = 2
    """Number of newest undamaged checkpoints to keep."""
    async_checkpoint: bool = False
    """Write checkpoints in the background."""
    max_hours: PositiveFloat | None = None
    """Save and exit with code 75 (to be restarted) after this many hours; `run` then starts no other task and exits with 75."""
    hang_minutes: Annotated[float, Field(gt=0, le=1e6)] = 20.0
    """Exit with code 75 (to be restarted) when no step finishes for this long; launchers then restart the run."""
    on_bad_step: Literal["stop", "skip"] = "stop"
    """A step with a non-finite loss or gradient norm (or a spike) is never applied: stop the run, or skip the step."""
    spike_factor: Annotated[float, Field(gt=1)] | None = None
    """Also count a gradient norm above this multiple of its running mean as a bad step; None disables the check."""

    @property
    def compiles(self) -> bool:
        """True if layers are compiled; "auto" is decided by `fitted`."""
        return self.compile == "yes"


def fitted(
    execution: Execution,
    model: ModelKind | None,
    train: TrainSpec,
    device: str,
    *,
    micro_batch_tokens: int | None,
    compile: bool,
    processes: int = 1,
) -> Execution:
    """Return `execution` with the scale's settings where it has none: micro-batches, no larger than a step, and on CUDA
    compiled layers if the model gains by them. `model`: None for other
    people's models."""
    if execution.micro_batch_tokens is None and micro_batch_tokens is not None:
        share = max(train.batch_tokens // processes, train.seq_len)
        execution = replace(execution, micro_batch_tokens=min(max(micro_batch_tokens, train.seq_len), share))
    gains = compile and model is not None and model.compiles and not execution.activation_checkpointing
    if gains and execution.compile == "auto" and device.startswith("cuda"):
        execution = replace(execution, compile="yes")
    return execution


def check_device(spec: RunSpec, device: str) -> None:
    """Raise ValueError if the run cannot be computed on `device` (cpu, cuda)."""
    if device.startswith("cuda") and spec.train.precision == "fp32" and spec.model.fp32_refused:
        refused = f"{spec.name} at {spec.scale} is trained in fp32, which {spec.model.fp32_refused} on a GPU"
        remedy = "use --device cpu (with `python -m slurm run` a cluster file without gpus_per_node and gpus)"
        raise ValueError(f"{refused}: {remedy}, or leave the model out with --only")


def check_capability(spec: RunSpec, capability: tuple[int, int]) -> None:
    """Raise ValueError if the gradients of fla's kernels are known to be wrong on a GPU of this compute capability."""
    if capability[0] == 9 and (reason := spec.model.hopper_refused):
        where = f"{spec.name} at {spec.scale} is not trained on Hopper GPUs"
        raise ValueError(f"{where}: {reason}. Use heads of 64, or --device cpu")


def micro_batch_size(spec: TrainSpec, world_size: int, micro_batch_tokens: int | None) -> int:
    """Return the sequences per forward pass. Raises ValueError if the batch does not divide evenly."""
    size = spec.num_pieces
    if size % world_size:
        reason = f"a step has {size} {spec.pieces}, which do not divide among {world_size} processes"
        raise ValueError(f"{reason}; use a number of processes that divides {size}")
    share = spec.batch_size // world_size
    if micro_batch_tokens is None:
        return share
    if micro_batch_tokens % spec.seq_len or share % (micro_batch_tokens // spec.seq_len):
        rule = f"a multiple of seq_len {spec.seq_len} that divides the {share * spec.seq_len} tokens of each process"
        raise ValueError(f"micro_batch_tokens {micro_batch_tokens} must be {rule}")
    return micro_batch_tokens // spec.seq_len


RUN_SPEC: TypeAdapter[RunSpec] = TypeAdapter(RunSpec)


def _changed(spec: object) -> dict:
    """Return the fields of a spec that are not at their default."""
    return _adapter(type(spec)).dump_python(spec, mode="json", exclude_defaults=True)


_adapter: Callable[[type], TypeAdapter[Any]] = cache(TypeAdapter)
