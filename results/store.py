"""Reading and writing of results: tidy rows as parquet (zstd), who made them as JSON beside. Torch-free.

A result is a pair NAME.parquet + NAME.meta.json. The JSON is renamed into place first and holds the digest of the
parquet, whose rename is the commit: a pair that was cut off between the two, or edited, is refused when read.

Meta of one evaluation (written by `eval`, in a run's `evals/` folder):
    kind, scale, model, run_id, eval_id, spec (of the evaluation), created (ISO, UTC), provenance, extras (optional dict)
Meta of an artefact (written by `gather`, in results/SCALE/):
    artefact, kind, scale, created (that of its newest evaluation), runs {run_id: {model, ...}},
    evals {eval_id: {spec, runs: {run_id: {created, provenance, extras}}}}
"""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from results.atomic import write_atomic
from results.schema import validate

Meta = dict[str, Any]
EVAL_META = ("kind", "scale", "model", "run_id", "eval_id", "spec", "created", "provenance")


def meta_path(path: Path) -> Path:
    """NAME.meta.json beside NAME.parquet."""
    return path.with_name(path.name.removesuffix(".parquet") + ".meta.json")


def write_rows(path: Path, rows: pd.DataFrame, meta: Meta) -> Path:
    """Validate `rows` by `meta["kind"]` and write the pair atomically. ValueError before anything is written."""
    if path.suffix != ".parquet":
        raise ValueError(f"{path}: results are stored as .parquet")
    missing = [key for key in ("kind", "scale") if key not in meta]
    if missing:
        raise ValueError(f"{path}: the meta lacks {', '.join(missing)}")
    rows = validate(meta["kind"], rows, where=str(path))
    scales = sorted(rows["scale"].unique())
    if scales != [meta["scale"]]:
        raise ValueError(f"{path}: rows of scale {', '.join(scales)} in a result of scale {meta['scale']}")
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), buffer, compression="zstd", compression_level=9)
    body = buffer.getvalue()
    meta = {**meta, "rows_sha256": hashlib.sha256(body).hexdigest()}
    text = json.dumps(meta, indent=1, sort_keys=True, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(meta_path(path), text)
    write_atomic(path, body)
    return path


def read_rows(path: Path) -> tuple[pd.DataFrame, Meta]:
    """Rows and meta of a stored result. ValueError: missing, truncated, edited, or not of its kind's schema."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such result; run its experiment first")
    try:
        meta: Meta = json.loads(meta_path(path).read_text())
        kind, digest = meta["kind"], meta["rows_sha256"]
    except FileNotFoundError:
        raise ValueError(f"{path}: its {meta_path(path).name} is missing; run its experiment again") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{meta_path(path)}: not the meta of a result ({error!r}); run its experiment again") from None
    body = path.read_bytes()
    if hashlib.sha256(body).hexdigest() != digest:
        raise ValueError(f"{path}: truncated or changed since {meta_path(path).name} was written; run its experiment again")
    try:
        rows = pq.read_table(io.BytesIO(body)).to_pandas()
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({error})") from None
    return validate(kind, rows, where=str(path)), meta


def gather(artefact: str, scale: str, sources: list[Path], results_dir: Path, runs: dict[str, Meta]) -> Path:
    """Join evaluation files into results_dir/SCALE/ARTEFACT.parquet and return its path.

    `sources`: evaluation files of one kind (runs/SCALE/NAME-ID/evals/*.parquet). `runs`: what to record of each run,
    {run_id: {"model", "spec", "provenance", "final_loss", "params", ...}}; a model that is no run of ours (a published
    checkpoint) may be absent. Gathering the same sources again leaves the files untouched.
    ValueError: no sources, sources of several kinds or scales, the same evaluation of the same run twice.
    """
    path = results_dir / scale / f"{artefact}.parquet"
    rows, meta = _join(artefact, scale, sources, runs)
    if path.is_file():
        try:
            old_rows, old_meta = read_rows(path)
        except ValueError:
            pass  # what cannot be read is replaced
        else:
            old_meta.pop("rows_sha256")
            if old_meta == json.loads(json.dumps(meta)) and old_rows.equals(rows):
                return path
    return write_rows(path, rows, meta)


def append(path: Path, rows: pd.DataFrame, meta: Meta) -> Path:
    """Add rows to a stored artefact: rows of the same (run_id, eval_id) are replaced, all others kept."""
    if not path.is_file():
        return write_rows(path, rows, meta)
    old_rows, old_meta = read_rows(path)
    for key in ("kind", "scale", "artefact"):
        if old_meta.get(key) != meta.get(key):
            raise ValueError(f"{path}: holds {key} {old_meta.get(key)!r}; {meta.get(key)!r} cannot be appended")
    new = pd.MultiIndex.from_frame(rows[["run_id", "eval_id"]])
    kept = old_rows[~pd.MultiIndex.from_frame(old_rows[["run_id", "eval_id"]]).isin(new)]
    merged = {**old_meta, **meta, "runs": {**old_meta.get("runs", {}), **meta.get("runs", {})}}
    merged["evals"] = {key: dict(value) for key, value in old_meta.get("evals", {}).items()}
    for key, value in meta.get("evals", {}).items():
        made = {**merged["evals"].get(key, {}).get("runs", {}), **value.get("runs", {})}
        merged["evals"][key] = {**value, "runs": made}
    merged["created"] = max(old_meta.get("created", ""), meta.get("created", ""))
    return write_rows(path, pd.concat([kept, rows], ignore_index=True), merged)


def _join(artefact: str, scale: str, sources: list[Path], runs: dict[str, Meta]) -> tuple[pd.DataFrame, Meta]:
    if not sources:
        raise ValueError(f"{artefact} at {scale}: no evaluations to gather; run its experiment first")
    frames = []
    meta: Meta = {"artefact": artefact, "scale": scale, "created": "", "runs": {}, "evals": {}}
    for source in sources:
        rows, made = read_rows(source)
        missing = [key for key in EVAL_META if key not in made]
        if missing:
            raise ValueError(f"{meta_path(source)}: lacks {', '.join(missing)}; evaluate again")
        kind = meta.setdefault("kind", made["kind"])
        if (made["scale"], made["kind"]) != (scale, kind):
            raise ValueError(f"{source}: {made['kind']} at {made['scale']} cannot join {kind} at {scale}")
        run_id, eval_id = made["run_id"], made["eval_id"]
        evaluation = meta["evals"].setdefault(eval_id, {"spec": made["spec"], "runs": {}})
        if run_id in evaluation["runs"]:
            raise ValueError(f"{source}: evaluation {eval_id} of run {run_id} is gathered twice")
        own = {"created": made["created"], "provenance": made["provenance"], "extras": made.get("extras", {})}
        evaluation["runs"][run_id] = own
        meta["runs"][run_id] = {**runs.get(run_id, {}), "model": made["model"]}
        meta["created"] = max(meta["created"], made["created"])
        frames.append(rows)
    return pd.concat(frames, ignore_index=True), meta
