"""Throughput: speed and memory of training steps and of generation (Table 6).

Only ratios between models on one machine are comparable, and only if their steps alternated in one process (`relative`):
otherwise, other load on the machine would look like a difference. `_low` and `_high` are the 20% and 80% quantiles over the
repeats (of a step, or of the decoding of a token)."""

from dataclasses import replace
from typing import Annotated, Literal, Self

import pandas as pd
import tyro

from eval.runner.spec import Content, EvalSpec, PrecisionOption, Setting
from models.spec import ModelSpec
from models.spec_parts import NonNegativeInt, PositiveInt, strict
from results.provenance import is_cpu
from results.schema import Schema, integer, number, text
from training.spec import GRAPH_PARTS

FIRST = 8
"""Decoding steps at the beginning that are not timed."""


@strict
class Spec(EvalSpec):
    """Speed and memory of training steps and of generation (Table 6), with fresh weights: no trained model is needed."""

    kind: Literal["throughput"] = "throughput"
    mode: Literal["train", "generate"] = "train"
    """train: training steps (training/step.py); generate: prefill, then decoding token by token. Token ids are random."""
    seq_len: PositiveInt = 16384
    """Tokens of a sequence, or of a prompt."""
    batch_size: PositiveInt = 1
    """Sequences per batch."""
    new_tokens: PositiveInt = 64
    """Decoding steps."""
    warmup: NonNegativeInt = 2
    """Untimed repeats before the timed ones."""
    repeats: PositiveInt = 5
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass."""
    micro_batch_tokens: PositiveInt | None = None
    """Tokens of a micro-batch; default: the whole batch."""
    compile: bool = False
    """Compile the layers of models that gain by it, on CUDA."""
    step: Annotated[Literal["graph", "stepper", "token"] | None, tyro.conf.Suppress] = None
    """Filled in for `train`: graph, or stepper if kernels are launched one by one; token for `generate`. Stored rows without it
    are of earlier measurements: a step with an optimiser of its own and no micro-batches, or decoding in which the first
    tokens, with which kernels are tuned, counted."""
    beside: Annotated[ModelSpec | None, tyro.conf.Suppress] = None
    """Other model (with the corpus's vocabulary) whose training steps alternate with the model's."""
    machine: Content = None
    """GPU, or CPU and its cores; a timing on another machine is another evaluation."""
    precision: PrecisionOption = None

    NEEDS = "spec"
    SCHEMA = Schema(
        {
            "mode": text(("train", "generate")),
            "seq_len": integer(1),
            **dict.fromkeys(("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high"), number(0)),
            # speed relative to the model beside it, over pairs of steps; NaN if timed alone
            **dict.fromkeys(("relative", "relative_low", "relative_high"), number(0, nullable=True)),
            "mfu": number(0, nullable=True),  # of executed FLOPs; NaN if these or the peak are unknown
            "mfu_dense": number(0, nullable=True),  # counts the skipped tiles of a pruned model as computed
            "peak_memory_gib": number(0, nullable=True),  # NaN on the CPU
            "params": integer(1),  # input embedding excluded
            "fwd_flops_per_token": number(0),  # dense
            "machine": text(),
        },
        key=("mode", "seq_len"),
    )

    def __post_init__(self) -> None:
        if self.mode == "generate" and self.new_tokens <= FIRST + 1:
            raise ValueError(f"new_tokens {self.new_tokens}: the first {FIRST} steps do not count; ask for {FIRST + 2} or more")
        if self.mode == "generate" and self.beside is not None:
            raise ValueError("beside: only training steps are timed beside those of another model; use mode 'train'")

    def bound(self, setting: Setting) -> Self:
        beside = self.beside
        if beside is not None and setting.corpus is not None:
            beside = replace(beside, vocab_size=setting.corpus.vocab_size)
        parts = self.batch_size * self.seq_len // (self.micro_batch_tokens or self.batch_size * self.seq_len)
        on_gpu = not is_cpu(setting.machine)
        graph = on_gpu and parts <= GRAPH_PARTS and not self.activation_checkpointing
        step: Literal["graph", "stepper", "token"] = "graph" if graph else "stepper"
        step = step if self.mode == "train" else "token"
        return replace(super().bound(setting), step=step, beside=beside)

    def flops(self, model: ModelSpec) -> float:
        steps, tokens = self.warmup + self.repeats, self.batch_size * self.seq_len
        if self.mode == "train":
            models = [model] if self.beside is None else [model, self.beside]
            return sum(3 * steps * tokens * each.flops_per_token(self.seq_len) for each in models)
        return steps * (tokens + self.batch_size * self.new_tokens) * model.flops_per_token(self.seq_len)

    def summary(self, rows: pd.DataFrame) -> list[str]:
        return [
            f"  {row.mode} at {row.seq_len}: {row.tokens_per_s:,.0f} tokens/s ({row.tokens_per_s_low:,.0f} to "
            f"{row.tokens_per_s_high:,.0f}), MFU {row.mfu:.3f} of 1, {row.peak_memory_gib:.2f} GiB"
            for row in rows.itertuples()
        ]
