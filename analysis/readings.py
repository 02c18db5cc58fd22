"""Values of drawn curves at a few places, from the CSV beside a picture: what an eye reads off a curve, with three digits."""

from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from analysis.names import title
from analysis.style import tokens
from analysis.tables import Column, Table

ALONG = {"position": "token index", "x": "place", "tokens": "training tokens", "share_of_training": "share of training"}
"""Columns that curves are drawn along, and their names."""
PLACES = 8


def read_off(csv: Path) -> Table | None:
    """Return the curves of a picture at up to eight places, between drawn points along a straight line; None where its CSV
    holds no curves. Token indices are halved from the end on, other axes are cut into equal parts."""
    frame = pd.read_csv(csv)
    along = next((name for name in ALONG if name in frame), None)
    if along is None:
        return None
    frame = frame.sort_values(along)
    keys = [str(name) for name in frame.columns if not is_numeric_dtype(frame[name])]
    values = [str(name) for name in frame.columns if name not in (along, *keys) and not str(name).endswith(("low", "high"))]
    longest = float(frame[along].max())
    places = (
        longest / 2.0 ** np.arange(PLACES)[::-1] if along in ("position", "x") else longest * np.arange(1, PLACES + 1) / PLACES
    )
    places = places[places >= frame[along].min()]
    rows = {}
    for key, own in frame.groupby(keys, sort=False) if keys else [((), frame)]:
        for value in values:
            drawn = own[[along, value]].dropna()
            if len(drawn):
                name = [title(str(part)) for part in (key if isinstance(key, tuple) else (key,))]
                name += [value.replace("_", " ")] if len(values) > 1 or not name else []
                found = np.interp(places, drawn[along], drawn[value], left=np.nan, right=np.nan)
                rows[", ".join(name)] = found.tolist()
    columns = [Column(f"{place:g}", _named(along, place), 3) for place in places]
    what = f"{values[0].replace('_', ' ')} by " if len(values) == 1 else "By "
    return Table(f"{what}{ALONG[along]}".capitalize(), columns, rows, "Between drawn points along a straight line.")


def _named(along: str, place: float) -> str:
    if along == "share_of_training":
        return f"{place:.0%}"
    return f"{place / 1e6:.3g}M" if along == "tokens" else tokens(round(place))
