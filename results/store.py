"""Stored results of a scale: runs, evaluations and their rows. Torch-free.

A user's results folder holds each run's own folder (training/run_folder.py), with the rows that were
measured on it:

    RESULTS/SCALE/runs/NAME-ID/evals/KIND-ID.parquet    rows of an evaluation, its meta in the footer

A published one holds tables, to which `python -m experiments publish` appends:

    RESULTS/SCALE/runs.jsonl                   a line per training: its record
    RESULTS/SCALE/evaluations.jsonl            a line per evaluation: its meta
    RESULTS/SCALE/rows/KIND-DIGEST.parquet     a row group per evaluation; the first columns are
                                               run_id, eval_id and weights
    RESULTS/SHA256SUMS                         digests of these files

Record: run_id, scale, name, spec, starts (every start's provenance), weights, final_loss.
Meta: kind, scale, model, run_id, eval_id, spec (of the evaluation), weights (digest of the weights
that were measured; None: fresh ones; "unrecorded" in the oldest rows), created (ISO, UTC),
provenance, extras. A user's folder holds one training of a run. Of some published runs two are
stored: rows are found by run, evaluation and weights."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from results.atomic import write_atomic
from results.lines import Row, last_row, read_lines, to_lines

if TYPE_CHECKING:  # training only checks whether rows exist, and imports neither pandas nor pyarrow
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    from results.schema import Schema

Meta = dict[str, Any]
META_KEYS = ("kind", "scale", "model", "run_id", "eval_id", "weights", "spec", "created", "provenance",
             "extras")  # fmt: skip
UNRECORDED = "unrecorded"
LAST_OLD = "c2474755"
"""Last commit that reads the layout before this one."""
POOLS = "pools.json"
"""File of a results folder with the pool of each scale: runs of one pool tell the noise between seeds."""
SUMS = "SHA256SUMS"


class Key(NamedTuple):
    """Identity of the rows of an evaluation."""

    run_id: str
    eval_id: str
    weights: str | None

    @staticmethod
    def of(meta: Meta) -> Key:
        return Key(meta["run_id"], meta["eval_id"], meta["weights"])


def write_rows(path: Path, rows: pd.DataFrame, meta: Meta, schema: Schema) -> None:
    """Validate `rows` and write them with their meta, atomically. ValueError before that."""
    if path.suffix != ".parquet":
        raise ValueError(f"{path}: results are stored as .parquet")
    text = json.dumps({name: meta[name] for name in META_KEYS})
    table = to_table(schema.validate(rows, where=str(path)))
    footer = {"meta": text, "crc32": _crc(text.encode(), table.schema, len(rows))}
    write_tables(path, [table.replace_schema_metadata(footer)])


def to_table(rows: pd.DataFrame) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata()


def write_tables(path: Path, tables: Sequence[pa.Table]) -> None:
    """Write a parquet file with a row group per table and a checksum per page, atomically."""
    import pyarrow.parquet as pq

    body, how = io.BytesIO(), dict(compression="zstd", compression_level=9, write_page_checksum=True)
    with pq.ParquetWriter(body, tables[0].schema, **how) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    write_atomic(path, body.getvalue())


def read_rows(path: Path) -> tuple[pd.DataFrame, Meta]:
    """Return the rows of one evaluation and their meta. ValueError for a missing or damaged file."""
    with reading(path):
        rows, meta = _read_file(path, path.stat().st_mtime_ns)
        return rows.copy(deep=False), meta  # pandas copies on write


def read_meta(path: Path) -> Meta:
    """Return the meta of a file of one evaluation, whose rows are not read. ValueError as in `read_rows`."""
    with reading(path):
        return _meta(open_parquet(path))


@lru_cache(maxsize=1024)
def _read_file(path: Path, changed_ns: int) -> tuple[pd.DataFrame, Meta]:
    file = open_parquet(path)
    rows = file.read(use_threads=False).to_pandas(use_threads=False)
    if len(rows) != file.metadata.num_rows:
        raise ValueError("rows are missing")
    return rows, _meta(file)


def open_parquet(path: Path) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, page_checksum_verification=True)


def _meta(file: pq.ParquetFile) -> Meta:
    footer = file.schema_arrow.metadata
    if _crc(footer[b"meta"], file.schema_arrow, file.metadata.num_rows) != footer[b"crc32"].decode():
        raise ValueError("its footer was changed")
    return json.loads(footer[b"meta"])


def _crc(meta: bytes, schema: pa.Schema, num_rows: int) -> str:
    """Return the checksum of what a footer says; pages have checksums of their own."""
    about = repr([num_rows, *((column.name, str(column.type)) for column in schema)])
    return str(zlib.crc32(about.encode(), zlib.crc32(meta)))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a missing or damaged file raises into a ValueError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except ImportError:
        raise
    except Exception as error:  # damaged files raise errors of many families
        raise ValueError(f"{path} is damaged: {str(error).partition(chr(10))[0]}") from None


def open_store(results_dir: Path, scale: str) -> Store:
    """Return the store of a scale, which is read again after its files have changed."""
    folder = results_dir / scale
    patterns = ("*.jsonl", "rows/*.parquet", "runs/*/*.json*", "runs/*/evals/*.parquet")
    files = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return _opened(folder, tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=32)
def _opened(folder: Path, stamps: tuple[tuple[Path, int], ...]) -> Store:
    return Store(folder)


class Store:
    """Runs and evaluations of one scale in a results folder, each read on first use."""

    def __init__(self, folder: Path):
        refuse_old(folder)
        self.folder = folder
        self.faults: dict[tuple[str, str], str] = {}
        """What is wrong with damaged files of rows, by run and evaluation; known once `metas` is read."""

    @cached_property
    def runs(self) -> dict[str, list[Row]]:
        """Records of trainings, by run."""
        found: dict[str, list[Row]] = defaultdict(list)
        for record in _read_whole(self.folder / "runs.jsonl"):
            found[record["run_id"]].append(record)
        for path in sorted(self.folder.glob("runs/*/spec.json")):
            with suppress(ValueError):  # `run` reports it
                record = read_record(path.parent)
                found[record["run_id"]].append(record)
        return dict(found)

    @cached_property
    def _stored(self) -> dict[Key, tuple[Meta, Path | None]]:
        metas = _read_whole(self.folder / "evaluations.jsonl")
        found: dict[Key, tuple[Meta, Path | None]] = {Key.of(meta): (meta, None) for meta in metas}
        for path in sorted(self.folder.glob("runs/*/evals/*.parquet")):
            name = id_of(path.parents[1]), path.stem
            try:
                meta = read_meta(path)
                if Key.of(meta)[:2] != name:
                    raise ValueError(f"{path} does not belong here: it is {meta['eval_id']} of {meta['run_id']}")
                found[Key.of(meta)] = meta, path
            except ValueError as error:
                self.faults[name] = str(error)
        return found

    @cached_property
    def metas(self) -> dict[Key, Meta]:
        """Metas of all evaluations, in the order in which they were stored."""
        return {key: meta for key, (meta, _) in self._stored.items()}

    @cached_property
    def _of_run(self) -> dict[tuple[str, str], list[Key]]:
        found: dict[tuple[str, str], list[Key]] = defaultdict(list)
        for key in self._stored:
            found[key[:2]].append(key)
        return found

    def run(self, run_id: str, weights: str | None) -> Row | None:
        """Return the record of a training: of these weights, or else the first of its run."""
        records = self.runs.get(run_id, [])
        return next((each for each in records if each["weights"] == weights), records[0] if records else None)

    def find(self, run_id: str, eval_id: str, weights: str | None) -> Key | None:
        """Return the key of an evaluation; without `weights`, of the rows that were stored first."""
        keys = self._of_run.get((run_id, eval_id), [])
        return next((key for key in keys if weights in (None, key.weights)), None)

    def rows(self, key: Key) -> pd.DataFrame:
        """Return the rows of an evaluation. ValueError if they are missing or damaged."""
        meta, path = self._stored[key]
        if path is not None:
            return read_rows(path)[0]
        groups = self._groups(meta["kind"])
        if key not in groups:
            lost = f"{self.folder / 'rows'} has no rows of {key.eval_id} of run {key.run_id}"
            raise ValueError(f"{lost}: restore the file that had them (git restore)")
        return _read_group(*groups[key]).copy(deep=False)

    def _groups(self, kind: str) -> dict[Key, tuple[Path, int, int]]:
        """Return the file of each evaluation of a kind in the tables, when it was changed, and the row group."""
        if kind not in self._tables:
            found: dict[Key, tuple[Path, int, int]] = {}
            for path in sorted((self.folder / "rows").glob(f"{kind}-*.parquet")):
                with reading(path):
                    about, changed_ns = open_parquet(path).metadata, path.stat().st_mtime_ns
                    for number in range(about.num_row_groups):
                        columns = (about.row_group(number).column(place).statistics for place in range(3))
                        values: list[Any] = [each.min if each.has_min_max else None for each in columns]
                        found[Key(*values)] = path, changed_ns, number
            self._tables[kind] = found
        return self._tables[kind]

    @cached_property
    def _tables(self) -> dict[str, dict[Key, tuple[Path, int, int]]]:
        return {}


@lru_cache(maxsize=1024)
def _read_group(path: Path, changed_ns: int, number: int) -> pd.DataFrame:
    with reading(path):
        table = open_parquet(path).read_row_group(number, use_threads=False)
        return table.drop_columns(list(Key._fields)).to_pandas(use_threads=False)


def _read_whole(path: Path) -> list[Row]:
    """Read a published file of JSON lines. ValueError for a damaged line."""
    rows, damaged = read_lines(path)
    if damaged:
        raise ValueError(f"{path} has {damaged} damaged lines: restore it (git restore)")
    return rows


def id_of(folder: Path) -> str:
    """Return the id of a run from the name of its folder, NAME-ID."""
    return folder.name.rpartition("-")[2]


def read_record(folder: Path) -> Row:
    """Return the record of the run in a folder, whose weights its evaluations name. `final_loss`: None
    before the last step, and if it is not finite. ValueError for a damaged spec."""
    try:
        spec = json.loads((folder / "spec.json").read_bytes())
        told = {"run_id": id_of(folder), "scale": spec["scale"], "name": spec["name"], "spec": spec}
        budget = spec["train"]["train_tokens"]
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise ValueError(f"{folder / 'spec.json'} cannot be read ({type(error).__name__})") from None
    starts, last = read_lines(folder / "provenance.jsonl")[0], last_row(folder / "metrics.jsonl")
    ended = last is not None and last["tokens"] >= budget and math.isfinite(last["loss"])
    return told | {"starts": starts, "weights": None, "final_loss": last["loss"] if last and ended else None}


def append(results_dir: Path, scale: str, records: Iterable[Row], rows: Iterable[tuple[Meta, pd.DataFrame]]) -> int:
    """Append trainings and evaluations to published tables. Returns the number of new evaluations; what is
    stored already stays as it is."""
    folder, known = results_dir / scale, open_store(results_dir, scale)
    new = {Key.of(meta): (meta, to_table(frame)) for meta, frame in rows if Key.of(meta) not in known.metas}
    files: dict[tuple[str, str], dict[Key, pa.Table]] = defaultdict(dict)
    for key, (meta, table) in new.items():
        files[meta["kind"], str(table.schema)][key] = table
    for (kind, _), tables in files.items():
        digest = hashlib.sha256(repr(list(tables)).encode()).hexdigest()[:8]
        write_tables(folder / "rows" / f"{kind}-{digest}.parquet", [_keyed(*each) for each in tables.items()])
    there = {(each["run_id"], each["weights"]) for own in known.runs.values() for each in own}
    more = [each for each in records if (each["run_id"], each["weights"]) not in there]
    for name, lines in (("evaluations", [meta for meta, _ in new.values()]), ("runs", more)):
        path = folder / f"{name}.jsonl"
        if lines:
            write_atomic(path, (path.read_text() if path.is_file() else "") + to_lines(lines))
    return len(new)


def _keyed(key: Key, table: pa.Table) -> pa.Table:
    """Return the rows of an evaluation after columns with its key."""
    import pyarrow as pa

    for place, (name, value) in enumerate(key._asdict().items()):
        table = table.add_column(place, name, pa.repeat(pa.scalar(value, pa.string()), table.num_rows))
    return table


def write_sums(results_dir: Path) -> None:
    """Write the SHA-256 of every published file of rows; `sha256sum --check --quiet SHA256SUMS` checks them."""
    patterns = ("*/runs.jsonl", "*/evaluations.jsonl", "*/rows/*.parquet", "measurements/*.parquet", POOLS)
    files = sorted(path for pattern in patterns for path in results_dir.glob(pattern))
    digests = ((hashlib.sha256(path.read_bytes()).hexdigest(), path.relative_to(results_dir)) for path in files)
    write_atomic(results_dir / SUMS, "".join(f"{digest}  {path.as_posix()}\n" for digest, path in digests))


def refuse_old(folder: Path) -> None:
    """Raise ValueError for a scale's folder of the layout before this one."""
    if next(folder.glob("runs/*.json"), None) is not None:
        raise ValueError(f"{folder} was written by an older version: commit {LAST_OLD} is the last that reads it")


def difference(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """Return the largest difference of a number relative to the largest number of its column; infinite if texts or
    shapes differ. Rows are compared in order."""
    from pandas.api.types import is_numeric_dtype

    if list(one.columns) != list(other.columns) or len(one) != len(other):
        return math.inf
    largest = 0.0
    for name in one.columns:
        if is_numeric_dtype(one[name]):
            a, b = one[name].to_numpy(float), other[name].to_numpy(float)
            finite = np.isfinite(a) & np.isfinite(b)
            if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
                return math.inf
            scale = max(float(np.abs(a[finite]).max(initial=0.0)), 1e-30)
            largest = max(largest, float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / scale)
        elif not one[name].equals(other[name]):
            return math.inf
    return largest


def without_seed(spec: dict[str, Any]) -> str:
    """Return a run's spec without seed and name, which is equal for all runs of a series. Fields that are None or False are
    left out: a switch that was added later is off in all older specs, which do not have it."""

    def on(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: on(each) for name, each in value.items() if each is not None and each is not False}
        return value

    return json.dumps(on({name: value for name, value in spec.items() if name not in ("seed", "name")}), sort_keys=True)
