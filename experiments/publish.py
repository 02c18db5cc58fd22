"""Publication: the runs, rows and lines of a user's results folder are appended to tables (results/store.py). Torch-free.

What is published stays as it is: of a run that is there already, only new evaluations of the same weights are added, and a
place of an artefact keeps its line."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pandas as pd
from rich.console import Console

from analysis.seeds import sizes
from analysis.study import Line, Lines, NothingStored, Study, joined, read_lines, write_lines
from experiments.artefact import artefacts
from results import measured, old
from results.atomic import write_atomic
from results.lines import Row
from results.store import POOLS, Meta, append, open_store, write_sums


def publish(source: Path, target: Path, console: Console) -> None:
    """Append everything in `source` to `target`. ValueError if there is nothing."""
    scales = sorted(path.parent.name for path in source.glob("*/runs"))
    tables = sorted((source / "measurements").glob("*.parquet"))
    if not scales and not tables:
        raise ValueError(f"{source} holds no runs and no measurements to publish")
    for scale in scales:
        is_old = next((source / scale).glob("runs/*.json"), None) is not None
        records, rows, drawn = _read_old(source / scale) if is_old else _read(source, scale)
        count = append(target, scale, records, rows)
        for lines in drawn:
            there = read_lines(target, scale, lines.stem).lines
            places = {line.place: line for line in there}
            kept = [line for line in lines.lines if places.get(line.place, line).run_id == line.run_id]
            kept = [line for line in kept if line.place not in places or places[line.place].weights in (None, line.weights)]
            write_lines(target, replace(lines, lines=joined(there, kept)))
            if left := len(lines.lines) - len(kept):
                console.print(f"{lines.stem} at {scale}: {left} lines stay as they are published")
        console.print(f"{scale}: {count} evaluations published")
    for table in tables:
        measured.append(table.stem, measured.read_whole(table), target / "measurements")
    write_atomic(target / POOLS, json.dumps({**sizes(source), **sizes(target)}, indent=1) + "\n")
    write_sums(target)


Found = tuple[Iterable[Row], Iterable[tuple[Meta, pd.DataFrame]], Iterable[Lines]]


def _read(source: Path, scale: str) -> Found:
    store = open_store(source, scale)
    weights: dict[str, str | None] = {}
    for key in store.metas:
        weights[key.run_id] = key.weights or weights.get(key.run_id)
    records = [store.runs[run_id][0] | {"weights": weights[run_id]} for run_id in weights]
    drawn = []
    for stem in artefacts():
        try:
            study = Study(source, scale, stem)
        except NothingStored:
            continue
        drawn.append(Lines(stem, scale, tuple(line for line in study.lines if line.run_id in weights or line.scale != scale)))
    return records, [(meta, store.rows(key)) for key, meta in store.metas.items()], drawn


def _read_old(folder: Path) -> Found:
    """Read a folder of the layout before this one."""
    stems = [stem for stem in artefacts() if (folder / f"{stem}.json").is_file()]
    drawn = [Lines(stem, folder.name, tuple(Line(**each) for each in old.lines(folder, stem))) for stem in stems]
    return old.records(folder), old.evaluations(folder), drawn
