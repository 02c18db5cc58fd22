"""Schemas: the columns of a kind of rows, validated when rows are written. Each evaluation declares its own. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:  # only writing needs it, and importing it takes a fifth of a second
    import pandera.pandas as pa


@dataclass(frozen=True)
class Column:
    """Type of a column, and the pandera check of its values."""

    dtype: type | str
    check: Callable[[type[pa.Check]], pa.Check] | None = None
    nullable: bool = False


def text(choices: Sequence[str] | None = None, *, empty: bool = False) -> Column:
    """A string column: one of `choices`, or any non-empty string (with `empty`: any string)."""
    if choices is not None:
        return Column(str, lambda check: check.isin(list(choices)))
    return Column(str, None if empty else lambda check: check.str_length(min_value=1, error="not empty"))


def integer(low: int, high: int | None = None) -> Column:
    return Column("int64", lambda check: check.in_range(low, 2**62 if high is None else high))


def number(low: float = -np.inf, high: float = np.inf, *, nullable: bool = False) -> Column:
    return Column("float64", lambda check: check.in_range(low, high), nullable)


def flag() -> Column:
    return Column("bool")


@dataclass(frozen=True)
class Schema:
    """Schema of rows: `columns` by name, in order; the columns in `key` together identify a row."""

    columns: dict[str, Column]
    key: tuple[str, ...]

    def validate(self, rows: pd.DataFrame, where: str = "rows") -> pd.DataFrame:
        """Return the rows with columns in order and of the right types; `where` names the rows in messages. ValueError for no
        rows, missing or surplus columns, wrong types, values out of range, or repeated keys."""
        import pandera.pandas as pa
        from pandera.errors import SchemaErrors

        missing = [name for name in self.columns if name not in rows.columns]
        surplus = [str(name) for name in rows.columns if name not in self.columns]
        if missing or surplus:
            raise ValueError(f"{where}: the columns are {list(self.columns)}; missing {missing}, not expected {surplus}")
        if rows.empty:
            raise ValueError(f"{where}: there are no rows")
        for name, column in self.columns.items():  # coercion makes any text True, "7" a number, and any number text
            held = rows[name].dtype
            if (column.dtype == "bool") != pd.api.types.is_bool_dtype(held):
                raise ValueError(f"{where}: column {name!r} must hold {column.dtype}; it holds {held}")
        for name, column in self.columns.items():  # coercion to int64 would silently cut 2.5 to 2
            if column.dtype == "int64" and pd.api.types.is_float_dtype(rows[name]) and (rows[name] % 1 != 0).any():
                bad = rows[name][rows[name] % 1 != 0].iloc[0]
                raise ValueError(f"{where}: column {name!r} must hold whole numbers; it has {bad!r}")
        checked = {
            name: pa.Column(x.dtype, x.check and x.check(pa.Check), nullable=x.nullable) for name, x in self.columns.items()
        }
        schema = pa.DataFrameSchema(checked, strict=True, coerce=True)
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
