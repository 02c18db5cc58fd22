"""Reading and writing of results: rows as parquet (zstd), who made them as JSON beside. Torch-free.

    results/SCALE/rows/KIND/RUN-EVAL.parquet + .meta.json     one evaluation of one run: immutable, shared by all artefacts
    results/SCALE/runs/RUN.json                               what a run was: spec, every start, final loss
    results/SCALE/STEM.json                                   which rows an artefact is drawn from (analysis/study.py)
    results/measurements/KIND/DATE-DIGEST.parquet + .meta.json     what needs no training (measured.py)

Storage only grows. Rows are kept under the identity of what made them, so equal names mean equal numbers up to rounding; the
first are kept, and `keep` says by how much later ones differ. The JSON of a pair is renamed into place first and holds the
digest of the parquet, whose rename is the commit: a pair that was cut off between the two, or edited, is refused when read.

Meta: kind, scale, model, run_id, eval_id, spec (of the evaluation), created (ISO, UTC), provenance, extras, rows_sha256.
"""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from results.atomic import write_atomic
from results.schema import Schema
from results.sealed import read_sealed, write_sealed

Meta = dict[str, Any]
META_KEYS = ("kind", "scale", "model", "run_id", "eval_id", "spec", "created", "provenance", "extras")
ROWS: dict[str, type] = {"kind": str, "created": str, "provenance": dict}
META: dict[str, type] = {**dict.fromkeys(META_KEYS, str), **ROWS, "spec": dict, "extras": dict}
RECORD: dict[str, type] = {"run_id": str, "scale": str, "name": str, "spec": dict, "starts": list}
REMEDY = "delete it (both files of the pair) and run its experiment again"


def meta_path(path: Path) -> Path:
    """NAME.meta.json beside NAME.parquet."""
    return path.with_name(path.name.removesuffix(".parquet") + ".meta.json")


def rows_file(results_dir: Path, scale: str, run_id: str, eval_id: str) -> Path:
    """Place of the rows of an evaluation of a run. `eval_id` is KIND-DIGEST."""
    kind, _, digest = eval_id.rpartition("-")
    return results_dir / scale / "rows" / kind / f"{run_id}-{digest}.parquet"


def write_rows(path: Path, rows: pd.DataFrame, meta: Meta, schema: Schema, keys: tuple[str, ...] = META_KEYS) -> Path:
    """Validate `rows` and write the pair atomically. ValueError before anything is written, also where `meta` lacks keys."""
    if path.suffix != ".parquet":
        raise ValueError(f"{path}: results are stored as .parquet")
    missing = [key for key in keys if key not in meta]
    if missing:
        raise ValueError(f"{path}: the meta lacks {', '.join(missing)}")
    rows = schema.validate(rows, where=str(path))
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), buffer, compression="zstd", compression_level=9)
    _write_pair(path, buffer.getvalue(), meta)
    return path


def _write_pair(path: Path, body: bytes, meta: Meta) -> None:
    write_sealed(meta_path(path), {**meta, "rows_sha256": hashlib.sha256(body).hexdigest()})
    write_atomic(path, body)


def read_rows(path: Path, types: dict[str, type] = ROWS) -> tuple[pd.DataFrame, Meta]:
    """Rows and meta of what is stored. ValueError: missing, truncated or edited. `types`: META of an evaluation."""
    body, meta = _read_pair(path, types)
    try:
        return pq.read_table(io.BytesIO(body)).to_pandas(), meta
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({error})") from None


def _read_pair(path: Path, types: dict[str, type]) -> tuple[bytes, Meta]:
    if not path.is_file():
        raise ValueError(
            f"{path}: there is no such result; bring it back (git restore) if it was deleted, or run its experiment"
        )
    meta = read_sealed(meta_path(path), REMEDY, types)
    body = path.read_bytes()
    if hashlib.sha256(body).hexdigest() != meta.get("rows_sha256"):
        raise ValueError(f"{path}: truncated or changed since {meta_path(path).name} was written; {REMEDY}")
    return body, meta


def fault_of(path: Path) -> str | None:
    """Return what is wrong with a stored evaluation, or None if it is whole."""
    try:
        _read_pair(path, META)
    except ValueError as error:
        return str(error)
    return None


def keep(source: Path, results_dir: Path, but: Sequence[str] = ()) -> tuple[Path, float | None]:
    """Put an evaluation file of a run folder into the store; returns its place there.

    What is stored already stays as it is; then the second value is by how much the new rows differ from it: the largest
    difference of a number, relative to the largest number of its column (infinite where texts or shapes differ), of all columns
    `but` some.
    ValueError: `source` is not whole.
    """
    body, meta = _read_pair(source, META)
    path = rows_file(results_dir, meta["scale"], meta["run_id"], meta["eval_id"])
    if fault_of(path) is None:
        one, other = (read_rows(each)[0].drop(columns=list(but), errors="ignore") for each in (path, source))
        return path, difference(one, other)
    meta.pop("rows_sha256")
    _write_pair(path, body, meta)
    return path, None


def difference(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """Return 0 for equal rows; see `keep`. Rows are compared in order."""
    if list(one.columns) != list(other.columns) or len(one) != len(other):
        return float("inf")
    largest = 0.0
    for name in one.columns:
        if pd.api.types.is_numeric_dtype(one[name]):
            a, b = one[name].to_numpy(float), other[name].to_numpy(float)
            finite = np.isfinite(a) & np.isfinite(b)
            if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
                return float("inf")
            scale = max(float(np.abs(a[finite]).max(initial=0.0)), 1e-30)
            largest = max(largest, float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / scale)
        elif not one[name].equals(other[name]):
            return float("inf")
    return largest


def run_file(results_dir: Path, scale: str, run_id: str) -> Path:
    return results_dir / scale / "runs" / f"{run_id}.json"


def record_run(results_dir: Path, record: dict[str, Any]) -> Path:
    """Keep what is known of a run: run_id, scale, name, spec, starts (every start's provenance), and what else is given.

    Starts that are stored already are kept, new ones are added; of other values the newest are kept, and None takes the place
    of none (a folder that was only timed knows no final loss).
    """
    path = run_file(results_dir, record["scale"], record["run_id"])
    known = read_run(path) if path.is_file() else {"starts": []}
    starts = {
        start["date"]: start for start in [*known["starts"], *record["starts"]]
    }  # of a start that has ended since, the end
    newer = {name: value for name, value in record.items() if value is not None or name not in known}
    merged = {**known, **newer, "starts": [starts[date] for date in sorted(starts)]}
    if merged != known:
        write_sealed(path, merged)
    return path


def read_run(path: Path) -> dict[str, Any]:
    remedy = "restore it from version control, or delete it and run an experiment that draws this run"
    return read_sealed(path, remedy, RECORD)
