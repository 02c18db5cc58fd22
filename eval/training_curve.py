"""Loss, gradient norm, learning rate and speed of every training step, from metrics.jsonl; needs no model and no torch."""

from typing import Literal

import pandas as pd
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from eval.shell.context import Context
from eval.shell.kind import Needs
from eval.shell.kind import bound as bound
from eval.shell.kind import reads as reads
from eval.shell.loading import Loaded
from models.spec import STRICT, ModelSpec
from results.schema import Schema, integer, number
from training.spec import RunSpec


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """The whole training of a run of this suite, one row a step."""

    kind: Literal["training_curve"] = "training_curve"


SCHEMA = Schema(
    {
        "step": integer(1),
        "tokens": integer(1),  # seen after the step
        "loss": number(nullable=True),  # nats per token; NaN: a bad step, which was not applied
        "grad_norm": number(0, nullable=True),  # before clipping
        "lr": number(0),
        "tokens_per_s": number(0),  # mean of the last 100 steps
        "mfu": number(0, nullable=True),  # NaN: a device of unknown peak, or a model that skips work
        "mfu_dense": number(0, nullable=True),  # skipped work counted as done
        "pruned_share": number(0, 1, nullable=True),  # of the causal tiles; NaN: not measured at this step
    },
    key=("step",),
)
NEEDS: Needs = "metrics"


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    if run.weights is not None:
        raise ValueError(f"run {run.run_id} ({run.name}) was trained elsewhere: there are no metrics to draw its training from")


def flops(spec: Spec, model: ModelSpec) -> float:
    return 0.0


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """One row a step. ValueError: the run is not finished or was trained elsewhere, or its metrics are damaged."""
    folder = loaded.subject.run_folder
    if not folder.finished:
        raise ValueError(f"{folder.path}: the run is not finished (it has no export/); train it to the end first")
    rows = folder.read_metrics()
    if not rows:
        raise ValueError(f"{folder.path}: the run was trained elsewhere; there are no metrics to draw its training from")
    return pd.DataFrame(rows, columns=list(SCHEMA.columns)).astype({"mfu": float, "mfu_dense": float, "pruned_share": float})


def summary(rows: pd.DataFrame) -> list[str]:
    last = rows.iloc[-1]
    return [f"  {len(rows)} steps, {last['tokens']:,.0f} tokens; last loss {last['loss']:.4f} nats per token (0 is perfect)"]
