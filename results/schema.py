"""Columns of every result, one pandera schema per kind of evaluation. Torch-free.

Every row says where it comes from: `scale`, `model` (key such as "fox_pro"), `run_id` and `eval_id`. `KEYS` names the
columns that, together with `run_id` and `eval_id`, identify a row; a value may appear only once.
"""

import numpy as np
import pandas as pd
import pandera.pandas as pa
from pandera.errors import SchemaErrors


def _text(empty: bool = False) -> pa.Column:
    return pa.Column(str, None if empty else pa.Check.str_length(min_value=1, error="not empty"))


def _integer(low: int, high: int | None = None) -> pa.Column:
    return pa.Column("int64", pa.Check.in_range(low, 2**62 if high is None else high))


def _number(low: float = -np.inf, high: float = np.inf, *, nullable: bool = False) -> pa.Column:
    return pa.Column("float64", pa.Check.in_range(low, high), nullable=nullable)


def _schema(columns: dict[str, pa.Column]) -> pa.DataFrameSchema:
    source = {name: _text() for name in ("scale", "model", "run_id", "eval_id")}
    return pa.DataFrameSchema(source | columns, strict=True, coerce=True)


SCHEMAS: dict[str, pa.DataFrameSchema] = {
    # L(i), section 4: mean negative log-likelihood in nats of token i (1-based) over `num_documents` documents; NaN where
    # a model's output was not finite (a Transformer far beyond its training context, say).
    "per_token_loss": _schema({"position": _integer(1), "loss": _number(0, nullable=True), "num_documents": _integer(1)}),
    # One generation. `score` 1-10 as in the paper; `exact` (0/1) and `fuzzy` (0-1) match; `scored_by` "match" or the judge.
    "needle": _schema(
        {
            "mode": pa.Column(str, pa.Check.isin(["easy", "standard", "passkey"])),
            "length": _integer(1),
            "depth": _number(0, 100),
            "sample": _integer(0),
            "score": _number(1, 10),
            "exact": _number(0, 1),
            "fuzzy": _number(0, 1),
            "scored_by": _text(),
            "prediction": _text(empty=True),
        }
    ),
    # One example: `score` 0-100, best over the references, of the prediction's first line unless the spec says otherwise.
    "longbench": _schema(
        {
            "task": _text(),
            "metric": _text(),
            "example": _integer(0),
            "score": _number(0, 100),
            "prediction": _text(empty=True),
        }
    ),
    # One metric of one task: percent for accuracies, plain for perplexities; `stderr` in the same unit, NaN where unknown.
    "lm_eval": _schema(
        {
            "task": _text(),
            "metric": _text(),
            "value": _number(),
            "stderr": _number(0, nullable=True),
            "num_examples": _integer(1),
            "task_version": _text(),
            "harness_version": _text(),
            "batch_size": _integer(1),
            "add_bos": _integer(0, 1),
        }
    ),
    # Long form. Head statistics ("half_life_tokens", "median_F", "pruned_share") have row = col = -1; entries of
    # the shown matrices ("F", "A") have the index of their cell, a square of `extras["cell"]` tokens.
    "gate_maps": _schema(
        {
            "layer": _integer(0),
            "head": _integer(0),
            "quantity": _text(),
            "row": _integer(-1),
            "col": _integer(-1),
            "value": _number(),
        }
    ),
    # Tokens per second of the whole node, `mode` "train" or "generate"; `mfu` 0-1 and `peak_memory_gib` NaN where unknown.
    "throughput": _schema(
        {
            "mode": pa.Column(str, pa.Check.isin(["train", "generate"])),
            "seq_len": _integer(1),
            "tokens_per_s": _number(0),
            "mfu": _number(0, 1, nullable=True),
            "peak_memory_gib": _number(0, nullable=True),
            "params": _integer(1),
            "fwd_flops_per_token": _number(0),
            "gpu": _text(),
        }
    ),
}

KEYS: dict[str, tuple[str, ...]] = {
    "per_token_loss": ("position",),
    "needle": ("mode", "length", "depth", "sample"),
    "longbench": ("task", "example"),
    "lm_eval": ("task", "metric"),
    "gate_maps": ("layer", "head", "quantity", "row", "col"),
    "throughput": ("mode", "seq_len", "gpu"),
}


def validate(kind: str, rows: pd.DataFrame, *, where: str = "rows") -> pd.DataFrame:
    """The rows with the columns of `kind` in the schema's order and dtypes; `where` names them in messages.

    ValueError: unknown kind, no rows, missing or surplus columns, wrong types, values out of range, repeated keys.
    """
    if kind not in SCHEMAS:
        raise ValueError(f"{where}: unknown kind of result {kind!r}; known: {', '.join(SCHEMAS)}")
    schema = SCHEMAS[kind]
    missing = [name for name in schema.columns if name not in rows.columns]
    surplus = [str(name) for name in rows.columns if name not in schema.columns]
    if missing or surplus:
        raise ValueError(f"{where}: columns of {kind!r} are {list(schema.columns)}; missing {missing}, not expected {surplus}")
    if rows.empty:
        raise ValueError(f"{where}: there are no rows of {kind!r}")
    _refuse_fractions(schema, rows, where)
    try:
        valid = schema.validate(rows[list(schema.columns)], lazy=True)
    except SchemaErrors as error:
        raise ValueError(f"{where}: {_first_failure(error)}") from None
    key = ["run_id", "eval_id", *KEYS[kind]]
    repeated = valid.duplicated(key)
    if repeated.any():
        first = valid.loc[repeated, key].iloc[0].to_dict()
        raise ValueError(f"{where}: {int(repeated.sum())} rows appear twice, the first: {first}")
    return valid.reset_index(drop=True)


def _refuse_fractions(schema: pa.DataFrameSchema, rows: pd.DataFrame, where: str) -> None:
    """Coercion to int64 would silently cut 2.5 to 2."""
    for name, column in schema.columns.items():
        if str(column.dtype) == "int64" and pd.api.types.is_float_dtype(rows[name]):
            bad = rows[name][rows[name] % 1 != 0]
            if len(bad):
                raise ValueError(f"{where}: column {name!r} must hold whole numbers; it has {bad.iloc[0]!r}")


def _first_failure(error: SchemaErrors) -> str:
    failure = error.failure_cases.iloc[0]
    more = len(error.failure_cases) - 1
    text = f"column {failure['column']!r}: {failure['check']} fails for {failure['failure_case']!r}"
    return text + (f" (and {more} more)" if more else "")
