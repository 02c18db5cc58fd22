"""Noise of seeds: the spread of trainings that differ only in the seed, from every stored run of a size; and the sources of
documents.

A contrast computes a functional of each of its models: a mean over some positions, or the difference of two such means. Its
variance between seeds is estimated by the *same* functional of all series that were trained with two or more seeds, so that a
difference inside one run has its own, smaller noise. A series with two seeds is only one of them; from three seeds on a series
uses its own seeds alone (analysis/statistics.py). The variances are pooled over the narrowest group that has 4 or more degrees
of freedom:

    the same scale, architecture and number of training tokens; the same scale and architecture; all scales of the size and the
    same architecture; the same scale; all scales of the size.

The file pools.json of a results folder says to which size a scale belongs, such as {"mini": "mini", "mini-short": "mini"}; a
scale that it does not name is a size of its own. Architectures: attention with a forget gate, attention without one, recurrent.
If no run was repeated, the noise is not known.

The other noise is that of documents: rows cut from one book are not independent samples. An evaluation records the source of
each document that it read (extras "sources")."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.statistics import Noise
from models.spec import KINDS
from results.store import POOLS, Key, Meta, Store, open_store, without_seed

ENOUGH = 4
"""Degrees of freedom from which a narrow group is preferred: the quantile of Student's t is 2.8 there, against 2 at best."""


@dataclass(frozen=True, eq=False)
class Repeated:
    """Rows of one evaluation of a series that was trained with several seeds, and its training context length and tokens."""

    scale: str
    family: str
    train_len: int
    rows: tuple[pd.DataFrame, ...]
    train_tokens: int = 0


def family_of(model: dict[str, Any]) -> str:
    """Return the architecture of a model's spec, by which seeds' noise is pooled."""
    return "attention without a forget gate" if model.get("forget_gate") == "none" else KINDS[model["kind"]].family


Functional = Callable[[Repeated], np.ndarray | None]
"""Function that returns one value per seed of a series; None for a series that lacks what it needs."""


def noise_of(
    series: Sequence[Repeated], scale: str, size: str, family: str, train_tokens: int, functional: Functional
) -> Noise | None:
    """Return the noise between seeds of `functional` at a scale of a size, pooled as above. None if it can be computed for no
    series."""

    @cache
    def squares(each: Repeated) -> tuple[float, int] | None:
        values = functional(each)
        if values is None or not np.isfinite(values).all():
            return None
        return float(((values - values.mean()) ** 2).sum()), len(values) - 1

    everywhere = f"any {size} scale"
    near = [each for each in series if (each.scale, each.family) == (scale, family)]
    alike = [each for each in near if each.train_tokens == train_tokens]
    groups = {
        **({f"{family} at {scale}, trained as long": alike} if len(alike) < len(near) else {}),
        f"{family} at {scale}": near,
        f"{family} at {everywhere}": [each for each in series if each.family == family],
        f"all models at {scale}": [each for each in series if each.scale == scale],
        f"all models at {everywhere}": series,
    }
    for where, chosen in groups.items():
        found = [known for each in chosen if (known := squares(each)) is not None]
        df = sum(own for _, own in found)
        if df >= ENOUGH or (found and where == f"all models at {everywhere}"):
            return Noise(sum(square for square, _ in found) / df, df, where)
    return None


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """One series as one kind of evaluation measured it. `noise` returns the noise between seeds of a functional. `sources_D`:
    the book that each document is from; None if that is not known."""

    label: str
    axes: dict[str, Any]
    model: str
    scale: str
    train_len: int
    noise: Callable[[Functional], Noise | None]
    sources_D: np.ndarray | None = None


def sizes(results_dir: Path) -> dict[str, str]:
    """Return the size of each scale that a results folder names."""
    path = results_dir / POOLS
    return json.loads(path.read_text()) if path.is_file() else {}


def size_of(results_dir: Path, scale: str) -> str:
    return sizes(results_dir).get(scale, scale)


def scales_of(results_dir: Path, size: str) -> list[str]:
    """Return the stored scales of a size."""
    known = sizes(results_dir)
    folders = sorted(path.name for path in results_dir.iterdir() if path.is_dir())
    return [scale for scale in folders if known.get(scale, scale) == size]


def repeats_for(sources: Sequence[Path], size: str, kind: str, without: frozenset[str] = frozenset()) -> tuple[Repeated, ...]:
    """Return all series of a size that were trained with several seeds, as one kind of evaluation measured them, from the
    results folders `sources`. `without`: digests of weights whose rows are left out, because they are to be judged."""
    return _repeats(tuple(open_store(each, scale) for each in sources for scale in scales_of(each, size)), kind, without)


@lru_cache(maxsize=16)
def _repeats(stores: tuple[Store, ...], kind: str, without: frozenset[str]) -> tuple[Repeated, ...]:
    groups: dict[tuple[str, ...], dict[int, tuple[Store, Key, dict[str, Any]]]] = defaultdict(dict)
    for store in stores:
        for key, meta in store.metas.items():
            record = store.run(key.run_id, key.weights)
            if meta["kind"] == kind and record is not None and key.weights not in without:
                spec = record["spec"]
                series = meta["scale"], without_seed(spec), str(meta["spec"].get("mode", "")), meta["eval_id"]
                groups[series].setdefault(spec["seed"], (store, key, spec))  # of several trainings of a run the first
    # Of several evaluations of a mode, take the one that most seeds share.
    widest: dict[tuple[str, ...], dict[int, tuple[Store, Key, dict[str, Any]]]] = {}
    for (*ways, _), seeds in groups.items():
        if len(seeds) > max(1, len(widest.get(tuple(ways), ()))):
            widest[tuple(ways)] = seeds
    found = []
    for (scale, *_), seeds in widest.items():
        rows, (*_, spec) = tuple(store.rows(key) for store, key, _ in seeds.values()), next(iter(seeds.values()))
        train = spec["train"]
        found.append(Repeated(scale, family_of(spec["model"]), int(train["seq_len"]), rows, int(train["train_tokens"])))
    return tuple(found)


def sources_of(meta: Meta, documents: int) -> np.ndarray | None:
    """Return the source of each of the first `documents` documents that an evaluation read; None if it is not known."""
    sources = meta["extras"].get("sources", [])
    return np.array(sources[:documents]) if 0 < documents <= len(sources) else None
