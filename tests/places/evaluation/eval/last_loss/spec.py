"""Loss of the last training step: the spec. Torch-free."""

from typing import Literal

import pandas as pd

from eval.runner.spec import EvalSpec
from models.spec_parts import strict
from results.schema import Schema, number


@strict
class Spec(EvalSpec):
    """Loss of the last training step, from metrics.jsonl."""

    kind: Literal["last_loss"] = "last_loss"

    NEEDS = "metrics"
    SCHEMA = Schema({"loss": number(0)}, key=("loss",))

    def summary(self, rows: pd.DataFrame) -> list[str]:
        return [f"  {rows.loss[0]:.4f} nats per token (0 is perfect)"]
