"""Training curve, from metrics.jsonl; needs no model and no torch."""

from typing import Literal

import pandas as pd

from data.corpus import Counts
from eval.runner.spec import EvalSpec
from models.spec_parts import strict
from results.schema import Schema, integer, number
from training.spec import RunSpec


@strict
class Spec(EvalSpec):
    """Loss, gradient norm, learning rate and speed of every training step, from metrics.jsonl; needs no model and no torch."""

    kind: Literal["training_curve"] = "training_curve"

    NEEDS = "metrics"
    SCHEMA = Schema(
        {
            "step": integer(1),
            "tokens": integer(1),  # seen after the step
            "loss": number(nullable=True),  # nats per token; NaN: a bad step, which was skipped
            "grad_norm": number(0, nullable=True),  # before clipping
            "lr": number(0),
            "tokens_per_s": number(0),  # mean of the last 100 steps
            "mfu": number(0, nullable=True),  # of executed FLOPs; NaN if these or the peak are unknown
            "mfu_dense": number(0, nullable=True),  # counts skipped work as computed
            "pruned_share": number(0, 1, nullable=True),  # share of the causal tiles; NaN: not measured at this step
        },
        key=("step",),
    )

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        if run.weights is not None:
            elsewhere = f"run {run.run_id} ({run.name}) was trained elsewhere"
            raise ValueError(f"{elsewhere}: it has no metrics of its training")

    def summary(self, rows: pd.DataFrame) -> list[str]:
        last = rows.iloc[-1]
        run = f"{len(rows)} steps, {last['tokens']:,.0f} tokens"
        return [f"  {run}; last loss {last['loss']:.4f} nats per token (0 is perfect)"]
