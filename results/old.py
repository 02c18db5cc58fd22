"""Rows in the layout of earlier versions, for `python -m experiments publish`:

SCALE/rows/KIND/RUN-EVAL.parquet + .meta.json     -WEIGHTS: of a later training of the run
SCALE/runs/RUN.json                               record of a run: spec, starts, trainings
SCALE/STEM.json                                   lines of an artefact, with the files of their rows"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from results.store import UNRECORDED, Meta

FRESH = ("throughput", "parameters", "equal_logits")
"""Kinds that measured untrained models."""


def records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of all trainings; the first of a run also has the starts of no known training."""
    for path in sorted(folder.glob("runs/*.json")):
        record = json.loads(path.read_text())
        own = {name: record[name] for name in ("run_id", "scale", "name", "spec")}
        unknown = {"weights": record["spec"].get("weights"), "final_loss": record["final_loss"], "starts": []}
        first, *others = record.get("trainings") or [unknown]
        later = {date for each in others for date in each["starts"]}
        for each in (first, *others):
            starts = [s for s in record["starts"] if (s["date"] not in later if each is first else s["date"] in each["starts"])]
            yield own | {"starts": starts, "weights": each["weights"], "final_loss": each["final_loss"]}


def meta_of(path: Path) -> Meta:
    """Return the meta of a file of rows."""
    meta: Meta = json.loads(path.with_name(path.name.replace(".parquet", ".meta.json")).read_text())
    for name in ("sha256", "rows_sha256"):
        meta.pop(name)
    return meta | {"weights": meta.get("weights") or (None if meta["kind"] in FRESH else UNRECORDED)}


def evaluations(folder: Path) -> Iterator[tuple[Meta, pd.DataFrame]]:
    """Yield all evaluations, by kind; later trainings of a run come after its first."""
    for path in sorted(folder.glob("rows/*/*.parquet"), key=lambda path: (path.parent, len(path.name), path.name)):
        yield meta_of(path), pd.read_parquet(path)


def lines(folder: Path, stem: str) -> list[dict[str, Any]]:
    """Return the lines of an artefact as `analysis.study` stores them."""
    found = []
    for line in json.loads((folder / f"{stem}.json").read_text())["lines"]:
        metas = [meta_of(folder.parent / name) for name in line.pop("files")]
        line.pop("weights", None)
        found.append(line | {"evals": {meta["eval_id"]: meta["weights"] for meta in metas}})
    return found
