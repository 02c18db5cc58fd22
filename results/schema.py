"""The columns of a kind of rows, checked when rows are written. Each evaluation declares its own in its folder. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pandera.pandas as pa
from pandera.errors import SchemaErrors


def text(choices: Sequence[str] | None = None, *, empty: bool = False) -> pa.Column:
    """A string: one of `choices`, or any that is not empty (unless `empty`)."""
    if choices is not None:
        return pa.Column(str, pa.Check.isin(list(choices)))
    return pa.Column(str, None if empty else pa.Check.str_length(min_value=1, error="not empty"))


def integer(low: int, high: int | None = None) -> pa.Column:
    return pa.Column("int64", pa.Check.in_range(low, 2**62 if high is None else high))


def number(low: float = -np.inf, high: float = np.inf, *, nullable: bool = False) -> pa.Column:
    return pa.Column("float64", pa.Check.in_range(low, high), nullable=nullable)


def flag() -> pa.Column:
    return pa.Column("bool")


@dataclass(frozen=True)
class Schema:
    """`columns` by name, in order; the columns of `key` together identify a row."""

    columns: dict[str, pa.Column]
    key: tuple[str, ...]

    def validate(self, rows: pd.DataFrame, where: str = "rows") -> pd.DataFrame:
        """The rows with the columns in order and of the right types; `where` names them in messages. ValueError: no rows,
        missing or surplus columns, wrong types, values out of range, repeated keys."""
        missing = [name for name in self.columns if name not in rows.columns]
        surplus = [str(name) for name in rows.columns if name not in self.columns]
        if missing or surplus:
            raise ValueError(f"{where}: the columns are {list(self.columns)}; missing {missing}, not expected {surplus}")
        if rows.empty:
            raise ValueError(f"{where}: there are no rows")
        for name, column in self.columns.items():  # coercion to int64 would silently cut 2.5 to 2
            if str(column.dtype) == "int64" and pd.api.types.is_float_dtype(rows[name]) and (rows[name] % 1 != 0).any():
                bad = rows[name][rows[name] % 1 != 0].iloc[0]
                raise ValueError(f"{where}: column {name!r} must hold whole numbers; it has {bad!r}")
        schema = pa.DataFrameSchema(dict(self.columns), strict=True, coerce=True)
        try:
            valid = schema.validate(rows[list(self.columns)], lazy=True)
        except SchemaErrors as error:
            first, more = error.failure_cases.iloc[0], len(error.failure_cases) - 1
            fault = f"column {first['column']!r}: {first['check']} fails for {first['failure_case']!r}"
            raise ValueError(f"{where}: {fault}{f' (and {more} more)' if more else ''}") from None
        repeated = valid.duplicated(list(self.key))
        if repeated.any():
            twice = valid.loc[repeated, list(self.key)].iloc[0].to_dict()
            raise ValueError(f"{where}: {int(repeated.sum())} rows appear twice, the first: {twice}")
        return valid.reset_index(drop=True)
