"""Noise of seeds: how far trainings that differ in nothing but the seed lie apart, from every stored run of a size.

A contrast takes something from each of its models: a mean over some positions, the difference of two such means. What this
varies by from seed to seed is estimated on all series that were trained with two or more seeds, each by the *same* functional,
so that a difference inside one run has its own, smaller noise. A series with seeds of its own is one of them like the others;
from three seeds on its own are all that it takes (analysis/statistics.py). The variances are pooled over the narrowest group
that has 4 degrees of freedom or more:

    the same scale and architecture; all scales of the size and the same architecture; the same scale; all scales of the size.

The size is what a scale's name begins with: mini, mini-short and mini-extrapolation are of one, 360m-7.5b is of another.
Architectures: attention with a forget gate, attention without one, recurrent. Where no run was repeated, nothing is known.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.names import RECURRENT
from analysis.statistics import Noise
from results.sealed import read_sealed
from results.store import META, REMEDY, read_rows, read_run

ENOUGH = 4
"""Degrees of freedom from which a narrow group is preferred: the quantile of Student's t is 2.8 there, against 2 at best."""


@dataclass(frozen=True, eq=False)
class Repeated:
    """Rows of one evaluation of a series that was trained with several seeds, and its training context length."""

    scale: str
    family: str
    train_len: int
    rows: tuple[pd.DataFrame, ...]


def family_of(model: dict[str, Any]) -> str:
    """Return the architecture of a model's spec, as seeds' noise is pooled."""
    if model["kind"] in RECURRENT:
        return "recurrent"
    gated = model.get("forget_gate", "none") != "none"
    return "attention with a forget gate" if gated else "attention without a forget gate"


@dataclass(frozen=True, eq=False)
class Repeats:
    """All series of a size that were repeated, as one kind of evaluation measured them. `of`: see `repeats_for`."""

    series: tuple[Repeated, ...] = ()

    def noise(self, scale: str, family: str, functional: Callable[[Repeated], np.ndarray | None]) -> Noise | None:
        """Return the noise of what `functional` takes from a series, one value a seed; it returns None for a series that it
        cannot be taken from. None where no series is left."""
        squares: dict[Repeated, tuple[float, int]] = {}
        for each in self.series:
            values = functional(each)
            if values is not None and len(values) > 1 and np.isfinite(values).all():
                squares[each] = float(((values - values.mean()) ** 2).sum()), len(values) - 1
        groups: list[tuple[str, list[Repeated]]] = [
            (f"{family} at {scale}", [each for each in squares if (each.scale, each.family) == (scale, family)]),
            (f"{family} at any {size_of(scale)} scale", [each for each in squares if each.family == family]),
            (f"all models at {scale}", [each for each in squares if each.scale == scale]),
            (f"all models at any {size_of(scale)} scale", list(squares)),
        ]
        for where, chosen in groups:
            df = sum(squares[each][1] for each in chosen)
            if df >= ENOUGH or (chosen and where == groups[-1][0]):
                return Noise(sum(squares[each][0] for each in chosen) / df, df, where)
        return None


NOTHING = Repeats()


def size_of(scale: str) -> str:
    """Return the size that a scale is of: what its name begins with."""
    return scale.partition("-")[0]


def repeats_for(results_dir: Path, scale: str, kind: str, without: frozenset[str] = frozenset()) -> Repeats:
    """Return what was repeated with other seeds at the scales of a size, by one kind of evaluation; `without` rows of some
    weights, those that are to be judged."""
    folders = sorted(each for each in results_dir.iterdir() if each.is_dir() and size_of(each.name) == size_of(scale))
    files = [path for folder in folders for path in sorted((folder / "rows" / kind).glob("*.meta.json"))]
    return _repeats(tuple(files), without)


@lru_cache(maxsize=16)
def _repeats(metas: tuple[Path, ...], without: frozenset[str]) -> Repeats:
    groups: dict[tuple[str, ...], dict[int, tuple[Path, dict[str, Any]]]] = {}
    for path in metas:
        meta = read_sealed(path, REMEDY, META)
        record = path.parents[2] / "runs" / f"{meta['run_id']}.json"
        if not record.is_file() or meta.get("weights") in without:
            continue
        spec = read_run(record)["spec"]
        same = json.dumps({name: value for name, value in spec.items() if name != "seed"}, sort_keys=True)
        mode = str(meta["spec"].get("mode", ""))
        groups.setdefault((meta["scale"], same, mode, meta["eval_id"]), {}).setdefault(spec["seed"], (path, spec))
    return Repeats(tuple(_read(groups)))


def _read(groups: dict[tuple[str, ...], dict[int, tuple[Path, dict[str, Any]]]]) -> Iterator[Repeated]:
    """Yield groups of several seeds; of several ways in which a mode was evaluated, the one that most seeds share."""
    widest: dict[tuple[str, ...], dict[int, tuple[Path, dict[str, Any]]]] = {}
    for (*series, _), seeds in groups.items():
        if len(seeds) > max(1, len(widest.get(tuple(series), ()))):
            widest[tuple(series)] = seeds
    for (scale, *_), seeds in widest.items():
        spec = next(iter(seeds.values()))[1]
        rows = tuple(read_rows(path.with_name(path.name.replace(".meta.json", ".parquet")))[0] for path, _ in seeds.values())
        yield Repeated(scale, family_of(spec["model"]), int(spec["train"]["seq_len"]), rows)
