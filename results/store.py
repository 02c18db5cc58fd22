"""Reading and writing of results: rows as parquet (zstd), with their provenance as JSON beside them. Torch-free.

    results/SCALE/rows/KIND/RUN-EVAL.parquet + .meta.json     one evaluation of one run: immutable, shared by all artefacts
    results/SCALE/rows/KIND/RUN-EVAL-WEIGHTS.parquet + ...    the same for each later training of that run
    results/SCALE/runs/RUN.json                               record of a run: spec, every start, every training
    results/SCALE/STEM.json                                   which rows an artefact is drawn from (analysis/study.py)
    results/measurements/KIND/DATE-DIGEST.parquet + .meta.json     measurements without training (measured.py)

The store only grows. Rows are named after the identity of the run and evaluation that made them, so equal names mean equal
numbers up to rounding; the first rows are kept, and `keep` tells how much later ones differ. Trainings of one run may differ in
their bits, for example on different kinds of GPU: each is identified by the digest of its weights, and their rows are never
mixed up. The JSON of a pair is renamed into place first and contains the digest of the parquet, whose rename is the commit: a
pair that was interrupted between the two, edited, or copied to another run's name is refused when read.

Meta: kind, scale, model, run_id, eval_id, spec (of the evaluation), weights (digest of the weights; null for untrained models,
missing in rows from before digests were recorded), created (ISO, UTC), provenance, extras, rows_sha256."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from results.atomic import write_atomic
from results.sealed import read_sealed, write_sealed

if TYPE_CHECKING:  # training only checks whether rows exist, and does not import pandas
    import pandas as pd

    from results.schema import Schema

Meta = dict[str, Any]
META_KEYS = ("kind", "scale", "model", "run_id", "eval_id", "spec", "created", "provenance", "extras")
ROWS: dict[str, type] = {"kind": str, "created": str, "provenance": dict}
META: dict[str, type] = {**dict.fromkeys(META_KEYS, str), **ROWS, "spec": dict, "extras": dict}
RECORD: dict[str, type] = {"run_id": str, "scale": str, "name": str, "spec": dict, "starts": list}
FRESH = ("throughput", "parameters", "equal_logits")
"""Kinds of evaluation that measure untrained models: their rows belong to no training."""
REMEDY = "delete it (both files of the pair) and run its experiment again"


def meta_path(path: Path) -> Path:
    """Return NAME.meta.json beside NAME.parquet."""
    return path.with_name(path.name.removesuffix(".parquet") + ".meta.json")


def rows_file(results_dir: Path, scale: str, run_id: str, eval_id: str, weights: str = "") -> Path:
    """Return the path of a run's evaluation. `eval_id`: KIND-DIGEST; `weights`: given for another training than the first."""
    kind, _, digest = eval_id.rpartition("-")
    name = f"{run_id}-{digest}-{weights[:8]}" if weights else f"{run_id}-{digest}"
    return results_dir / scale / "rows" / kind / f"{name}.parquet"


def is_fresh(name: str) -> bool:
    """Return whether an evaluation, given by id or by the path of its rows, measures untrained models."""
    return (name.split("/")[-2] if "/" in name else name.rpartition("-")[0]) in FRESH


def training_in_name(path: Path) -> str:
    """Return the first digits of the weights' digest in the name of stored rows; empty for a run's first training and for
    untrained models."""
    return "".join(path.stem.split("-")[2:])


def write_rows(path: Path, rows: pd.DataFrame, meta: Meta, schema: Schema, keys: tuple[str, ...] = META_KEYS) -> Path:
    """Validate `rows` and write the pair atomically. ValueError before anything is written, also if `meta` lacks keys."""
    if path.suffix != ".parquet":
        raise ValueError(f"{path}: results are stored as .parquet")
    missing = [key for key in keys if key not in meta]
    if missing:
        raise ValueError(f"{path}: the meta lacks {', '.join(missing)}")
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = schema.validate(rows, where=str(path))
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), buffer, compression="zstd", compression_level=9)
    _write_pair(path, buffer.getvalue(), meta)
    return path


def _write_pair(path: Path, body: bytes, meta: Meta) -> None:
    write_sealed(meta_path(path), {**meta, "rows_sha256": hashlib.sha256(body).hexdigest()})
    write_atomic(path, body)


def read_rows(path: Path, types: dict[str, type] = ROWS, **owner: str) -> tuple[pd.DataFrame, Meta]:
    """Return stored rows and their meta. ValueError if the pair is missing, truncated or edited, or if its meta disagrees with
    `owner` (run_id, scale, eval_id). `types`: types of the meta's values; META for an evaluation."""
    body, meta = _read_pair(path, types, owner)
    try:
        return _frame(body).copy(deep=False), meta  # pandas copies on write
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({error})") from None


@lru_cache(maxsize=1024)
def _frame(body: bytes) -> pd.DataFrame:
    """Read the rows of a parquet file, cached because studies share files. Without pyarrow, as in the small environment,
    fastparquet reads the same rows."""
    try:
        import pyarrow.parquet as pq

        return pq.read_table(io.BytesIO(body), use_threads=False).to_pandas(use_threads=False)
    except ModuleNotFoundError:
        import fastparquet

        rows = fastparquet.ParquetFile(io.BytesIO(body)).to_pandas()
        return rows.astype({name: "str" for name, dtype in rows.dtypes.items() if dtype.kind == "O"})


def read_evaluation(path: Path, run_id: str) -> tuple[pd.DataFrame, Meta]:
    """Return rows and meta of a run's stored evaluation. ValueError as in `read_rows`, and if it belongs to another path."""
    rows, meta = read_rows(path, META, run_id=run_id)
    own = [rows_file(path.parents[3], meta["scale"], run_id, meta["eval_id"], each or "") for each in ("", meta.get("weights"))]
    if path not in own:
        raise ValueError(f"{path} does not belong here: its rows belong to {own[0]}; {REMEDY}")
    return rows, meta


def _read_pair(path: Path, types: dict[str, type], owner: dict[str, str] | None = None) -> tuple[bytes, Meta]:
    if not path.is_file():
        raise ValueError(
            f"{path}: there is no such result; bring it back (git restore) if it was deleted, or run its experiment"
        )
    meta = read_sealed(meta_path(path), REMEDY, types)
    body = path.read_bytes()
    if hashlib.sha256(body).hexdigest() != meta.get("rows_sha256"):
        raise ValueError(f"{path}: truncated or changed since {meta_path(path).name} was written; {REMEDY}")
    for name, value in (owner or {}).items():
        if meta.get(name) != value:
            raise ValueError(f"{path} does not belong here: its {name} is {meta.get(name)}, not {value}; {REMEDY}")
    return body, meta


def read_meta(path: Path) -> Meta:
    """Return the meta of an evaluation. ValueError if it is missing or edited."""
    return read_sealed(meta_path(path), REMEDY, META)


def fault_of(path: Path, **owner: str) -> str | None:
    """Return what is wrong with a stored evaluation, or None if it is intact and belongs to `owner`; see `read_rows`."""
    try:
        _read_pair(path, META, owner)
    except ValueError as error:
        return str(error)
    return None


def keep(source: Path, results_dir: Path, but: Sequence[str] = (), weights: str = "") -> tuple[Path, float | None]:
    """Copy an evaluation from a run folder into the store; `weights`: given for another training than the run's first. Returns
    its path there and None or, if rows of another evaluation are stored there, which are then left unchanged, how much the new
    rows differ: the largest difference of a number relative to the largest number of its column, over all columns except `but`
    (infinite if texts or shapes differ). ValueError if `source` is damaged."""
    body, meta = _read_pair(source, META)
    owner = {name: meta[name] for name in ("scale", "run_id", "eval_id")}
    path = rows_file(results_dir, **owner, weights=weights)
    if fault_of(path, **owner) is None:
        if read_meta(path) == meta:  # copied from this folder before
            return path, None
        one, other = (read_rows(each)[0].drop(columns=list(but), errors="ignore") for each in (path, source))
        return path, difference(one, other)
    _write_pair(path, body, meta)
    return path, None


def difference(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """Return how much rows differ, as defined in `keep`; 0 if they are equal. Rows are compared in order."""
    from pandas.api.types import is_numeric_dtype

    if list(one.columns) != list(other.columns) or len(one) != len(other):
        return float("inf")
    largest = 0.0
    for name in one.columns:
        if is_numeric_dtype(one[name]):
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
    """Store the record of a run: run_id, scale, name, spec, starts (every start's provenance), trainings (weights, dates of
    starts, final loss), and further values. Starts and trainings are merged with stored ones. Other values are replaced by new
    ones, but never by None (a folder used only for timings has no final loss). `final_loss` is that of the first training with
    one."""
    path = run_file(results_dir, record["scale"], record["run_id"])
    known = read_run(path) if path.is_file() else {"starts": []}
    starts = {start["date"]: start for start in [*known["starts"], *record["starts"]]}  # a newer entry may have an end
    newer = {name: value for name, value in record.items() if value is not None or name not in known}
    merged = {**known, **newer, "starts": [starts[date] for date in sorted(starts)]}
    if "trainings" in record:
        merged["trainings"] = trainings = _joined(trainings_of(known), record["trainings"])
        merged["final_loss"] = next((each["final_loss"] for each in trainings if each["final_loss"] is not None), None)
    if merged != known:
        write_sealed(path, merged)
    return path


def _joined(known: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge trainings, in the order in which they were added."""
    found = [dict(training) for training in known]
    for training in new:
        same = next((each for each in found if is_training(each, training)), None)
        if same is None:
            found.append(training)
        else:
            same["weights"] = same["weights"] or training["weights"]
            same["starts"] = sorted({*same["starts"], *training["starts"]})
            same["final_loss"] = training["final_loss"] if same["final_loss"] is None else same["final_loss"]
    return found


def is_training(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two entries of a record are the same training, by weights or, if one has no digest, by final loss."""
    if one["weights"] is not None and other["weights"] is not None:
        return one["weights"] == other["weights"]
    return one["final_loss"] == other["final_loss"]


def trainings_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the trainings of a run. A record from before trainings were listed has one if the run was trained or adopted, and
    only knows the digest of adopted weights."""
    loss, adopted = record.get("final_loss"), record.get("spec", {}).get("weights")
    dates = [start["date"] for start in record["starts"]]
    before = [{"weights": adopted, "starts": dates, "final_loss": loss}] if loss is not None or adopted else []
    return record.get("trainings", before)


def starts_of(record: dict[str, Any], training: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the starts of one training of a run."""
    return [start for start in record["starts"] if start["date"] in training["starts"]]


def without_seed(spec: dict[str, Any]) -> str:
    """Return a run's spec without seed and name, which is equal for all runs of a series. Fields that are None or False are
    left out: a switch that was added later is off in all older specs, which do not have it."""

    def on(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: on(each) for name, each in value.items() if each is not None and each is not False}
        return value

    return json.dumps(on({name: value for name, value in spec.items() if name not in ("seed", "name")}), sort_keys=True)


def read_run(path: Path) -> dict[str, Any]:
    """Return the record of a run. ValueError if it is missing, edited, or belongs to another run."""
    remedy = "restore it from version control, or delete it and run an experiment that draws this run"
    values = read_sealed(path, remedy, RECORD)
    if (values["run_id"], values["scale"]) != (path.stem, path.parent.parent.name):
        raise ValueError(f"{path} does not belong here: it is run {values['run_id']} of {values['scale']}; {remedy}")
    for listed in (values["starts"], values.get("trainings", [])):
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise ValueError(f"{path} is of another version: {remedy}")
    return values
