"""Speed and memory of training steps and of generation (Table 6), of fresh weights: no training is needed.

Comparable between models on one machine, as ratios, and these only of steps that alternated in one process (`relative`): what
else a machine does would else be taken for a difference. `_low` and `_high` are the 20% and 80% quantiles over the repeats.
"""

from dataclasses import replace
from typing import Annotated, Literal

import pandas as pd
import tyro
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from data.spec import DataSpec
from eval.shell import kind
from eval.shell.kind import Content, Needs, NonNegativeInt, Precision
from eval.shell.kind import check as check
from eval.shell.kind import reads as reads
from eval.shell.sources import Sources
from models.spec import STRICT, ModelSpec, PositiveInt
from results.schema import Schema, integer, number, text


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """Tokens per second, peak memory and model FLOP utilisation of a training step or of generation (Table 6).

    "train": a training's step (training/step.py) on `batch_size` sequences of `seq_len`, in micro-batches of
    `micro_batch_tokens` (None: whole); `compile`: the layers on CUDA, of models that gain by it. "generate": prefill of
    `batch_size` prompts of `seq_len` tokens, then `new_tokens` decoding steps. Random token ids; `repeats` after `warmup`.
    `step`: filled in for "train". Stored rows without it are of an earlier step, with an optimiser of its own and no
    micro-batches, which is not measured any more.
    `machine`: GPU, or CPU and its cores: another machine's timing is another evaluation. `beside`: a model (its vocabulary is
    the corpus's) whose training steps alternate with the model's.
    """

    kind: Literal["throughput"] = "throughput"
    mode: Literal["train", "generate"] = "train"
    seq_len: PositiveInt = 16384
    batch_size: PositiveInt = 1
    new_tokens: PositiveInt = 64
    warmup: NonNegativeInt = 2
    repeats: PositiveInt = 5
    activation_checkpointing: bool = False
    micro_batch_tokens: PositiveInt | None = None
    compile: bool = False
    step: Annotated[Literal["stepper"] | None, tyro.conf.Suppress] = None
    beside: Annotated[ModelSpec | None, tyro.conf.Suppress] = None
    machine: Content = None
    precision: Precision | None = None

    @model_validator(mode="after")
    def _check(self) -> "Spec":
        if self.mode == "generate" and self.new_tokens < 2:
            raise ValueError(f"new_tokens {self.new_tokens}: timing the decoding needs at least 2")
        if self.mode == "generate" and self.beside is not None:
            raise ValueError("beside: only training steps are timed beside those of another model")
        return self


SCHEMA = Schema(
    {
        "mode": text(("train", "generate")),
        "seq_len": integer(1),
        "tokens_per_s": number(0),  # median
        "tokens_per_s_low": number(0),
        "tokens_per_s_high": number(0),
        "relative": number(0, nullable=True),  # speed over that of the model beside it, median of the pairs; NaN: timed alone
        "relative_low": number(0, nullable=True),
        "relative_high": number(0, nullable=True),
        "mfu": number(0, nullable=True),  # of the FLOPs that are executed; NaN where these or the peak are unknown
        "mfu_dense": number(0, nullable=True),  # skipped tiles of a pruned model counted as done
        "peak_memory_gib": number(0, nullable=True),  # NaN on the CPU
        "params": integer(1),  # input embedding excluded
        "fwd_flops_per_token": number(0),  # dense
        "machine": text(),
    },
    key=("mode", "seq_len"),
)
NEEDS: Needs = "spec"


def bound(spec: Spec, corpus: DataSpec | None, sources: Sources, precision: Precision, machine: str) -> Spec:
    """As usual, and the model beside with the corpus's vocabulary."""
    spec = kind.bound(spec, corpus, sources, precision, machine)
    if spec.mode == "train":
        spec = replace(spec, step="stepper")
    if spec.beside is None or corpus is None:
        return spec
    return replace(spec, beside=replace(spec.beside, vocab_size=corpus.vocab_size))


def flops(spec: Spec, model: ModelSpec) -> float:
    steps = spec.warmup + spec.repeats
    tokens = spec.batch_size * spec.seq_len
    if spec.mode == "train":
        models = [model] if spec.beside is None else [model, spec.beside]
        return sum(3 * steps * tokens * each.flops_per_token(spec.seq_len) for each in models)
    return steps * (2 * tokens + spec.batch_size * spec.new_tokens) * model.flops_per_token(spec.seq_len)


def summary(rows: pd.DataFrame) -> list[str]:
    return [
        f"  {row.mode} at {row.seq_len}: {row.tokens_per_s:,.0f} tokens/s ({row.tokens_per_s_low:,.0f} to "
        f"{row.tokens_per_s_high:,.0f}), MFU {row.mfu:.3f} of 1, {row.peak_memory_gib:.2f} GiB"
        for row in rows.itertuples()
    ]
