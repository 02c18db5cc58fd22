"""Rows on pruning as figures and claims use them. A line has a rule of pruning and a training context.

Suffixes: D documents, H heads of all layers, M query tiles.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from analysis.sources import sources_of
from analysis.statistics import Estimate, Term, contrast
from analysis.study import Axes, Line, Series, Study
from results.store import Meta

KIND = "pruning"


@dataclass(frozen=True, eq=False)
class Skipped:
    """Evaluations of one series, a mean over seeds but for `share_SD`. `share_DH`: share of the causal tiles that is skipped;
    `first`: (layer, head) -> first key tile that each query tile of document 0 computes (M,)."""

    label: str
    axes: Axes
    context: int
    tile: int
    share_SD: np.ndarray
    share_DH: np.ndarray
    heads: list[tuple[int, int]]
    keys_read_H: np.ndarray
    dropped_H: np.ndarray
    losses: pd.DataFrame
    first: dict[tuple[int, int], np.ndarray]
    log_tolerance: float
    sources_D: np.ndarray | None

    @property
    def mean_H(self) -> np.ndarray:
        return self.share_DH.mean(axis=0)

    def term(self, coefficient: float) -> Term:
        """The mean share over heads; what varies is the documents, and the seeds where there are several."""
        mean_D = self.share_DH.mean(axis=1)
        return Term(self, coefficient, self.share_SD.mean(axis=1), mean_D - mean_D.mean(), self.sources_D)

    @property
    def share(self) -> Estimate:
        return contrast([self.term(1.0)])


@lru_cache(maxsize=64)  # more than a scale has artefacts: `render` draws all, then reports on all
def skipped(study: Study) -> tuple[Skipped, ...]:
    """Return evaluations by training context, each at its own. ValueError if nothing is stored."""
    groups: dict[Series, list[tuple[Line, pd.DataFrame, Meta]]] = {}
    for line, rows, meta in study.evaluations(KIND, "evaluations of pruning"):
        groups.setdefault(line.series, []).append((line, rows, meta))
    return tuple(sorted((_skipped(study, group) for group in groups.values()), key=lambda each: each.context))


def _skipped(study: Study, seeds: list[tuple[Line, pd.DataFrame, Meta]]) -> Skipped:
    shares = [_by_head(rows, "tiles_pruned") for _, rows, _ in seeds]
    line, rows, meta = seeds[0]
    spec = meta["spec"]
    tiles = rows[rows["quantity"] == "first_tile"].sort_values("position")
    losses = rows[rows["head"] < 0].pivot(index="document", columns="quantity", values="value")
    return Skipped(
        label=line.label,
        axes=line.axes,
        context=int(spec["context_len"]),
        tile=int(spec["tile"]),
        share_SD=np.stack([share.to_numpy().mean(axis=1) for share in shares]),
        share_DH=np.mean([share.to_numpy() for share in shares], axis=0),
        heads=[(int(each[0]), int(each[1])) for each in shares[0].columns.to_list()],
        keys_read_H=np.mean([_by_head(own, "keys_read").to_numpy().mean(axis=0) for _, own, _ in seeds], axis=0),
        dropped_H=np.max([_by_head(own, "dropped").to_numpy().max(axis=0) for _, own, _ in seeds], axis=0),
        losses=losses,
        first={head: own["value"].to_numpy() for head, own in tiles.groupby(["layer", "head"])},  # type: ignore[misc]
        log_tolerance=float(spec["log_tolerance"]),
        sources_D=sources_of(study.results_dir, meta, len(shares[0])),
    )


def _by_head(rows: pd.DataFrame, quantity: str) -> pd.DataFrame:
    return (
        rows[rows["quantity"] == quantity].pivot(index="document", columns=["layer", "head"], values="value").sort_index(axis=1)
    )


def fewest_seeds(found: tuple[Skipped, ...]) -> int:
    return min(len(each.share_SD) for each in found)


def tile_note(found: tuple[Skipped, ...]) -> str:
    """Say for notes in which tiles it was counted: the kernels' own, or smaller ones in short contexts."""
    sizes = sorted({each.tile for each in found})
    own = " (the kernels' own)" if sizes == [128] else ", where the kernels' own of 128 would be too few"
    return f"counted in tiles of {', '.join(map(str, sizes))} tokens{own}"
