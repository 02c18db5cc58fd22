"""Time of attention and of training steps with and without adaptive computation pruning, of a trained FoX (ACP).

What pruning saves is in the gates that a model has learned and in the text, so fresh weights or random tokens would not do.
`attention_forward` and `attention` (forward + backward) are sums over the layers of what each is given in a pass over the text;
`step` is forward, backward and optimiser. Comparable on one machine, as ratios.
"""

from typing import Literal

import pandas as pd
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from eval.per_token_loss import check_documents
from eval.shell.kind import Content, Needs, NonNegativeInt, Precision
from eval.shell.kind import bound as bound
from eval.shell.kind import reads as reads
from models.spec import STRICT, ForgettingTransformerSpec, ModelSpec, PositiveInt
from results.schema import Schema, integer, number, text
from training.spec import RunSpec


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """Milliseconds on the first `batch_size` held-out documents at `seq_len` tokens; `repeats` after `warmup`.

    `machine`: GPU, or CPU and its cores. `corpus`: fingerprint.
    """

    kind: Literal["attention_speed"] = "attention_speed"
    seq_len: PositiveInt
    batch_size: PositiveInt = 1
    warmup: NonNegativeInt = 2
    repeats: PositiveInt = 5
    log_tolerance: float = -10.0
    corpus: Content = None
    machine: Content = None
    precision: Precision | None = None


QUANTITIES = ("attention_forward", "attention", "step")
SCHEMA = Schema(
    {
        "quantity": text(QUANTITIES),
        "pruned": integer(0, 1),
        "milliseconds": number(0),  # median
        "milliseconds_low": number(0),  # 20% and 80% quantiles over the repeats
        "milliseconds_high": number(0),
        "tokens": integer(1),
        "machine": text(),
    },
    key=("quantity", "pruned"),
)
NEEDS: Needs = "weights"


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    check_documents(spec.batch_size, spec.seq_len, None if counts is None else counts.heldout_rows, run.data.document_len)
    if not isinstance(run.model, ForgettingTransformerSpec) or run.model.forget_gate == "none":
        raise ValueError(f"pruning needs a model with forget gates (FoX); {run.name} has none")


def flops(spec: Spec, model: ModelSpec) -> float:
    passes = 2 * (spec.warmup + spec.repeats) * 3
    return passes * spec.batch_size * spec.seq_len * model.flops_per_token(spec.seq_len)


def summary(rows: pd.DataFrame) -> list[str]:
    times = rows.pivot(index="quantity", columns="pruned", values="milliseconds")
    return [f"  {quantity}: {each[0]:.2f} ms, pruned {each[1]:.2f} ms" for quantity, each in times.iterrows()]
