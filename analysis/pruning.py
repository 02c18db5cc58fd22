"""Rows on pruning as figures and claims use them.

Suffixes: D documents, H heads of all layers, M query tiles.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from analysis.statistics import Estimate, Term, contrast
from analysis.study import Study

KIND = "pruning"


@dataclass(frozen=True, eq=False)
class Skipped:
    """One label's evaluations, a mean over seeds but for `share_SD`. `share_DH`: share of the causal tiles that is skipped;
    `first`: (layer, head) -> first key tile that each query tile of document 0 computes (M,)."""

    label: str
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

    @property
    def mean_H(self) -> np.ndarray:
        return self.share_DH.mean(axis=0)

    def term(self, coefficient: float) -> Term:
        """The mean share over heads; what varies is the documents, and the seeds where there are several."""
        mean_D = self.share_DH.mean(axis=1)
        return Term(self, coefficient, self.share_SD.mean(axis=1), mean_D - mean_D.mean())

    @property
    def share(self) -> Estimate:
        return contrast([self.term(1.0)])


def context_of(label: str) -> int:
    """Training context of a label such as "pruned, context 4096". ValueError for others."""
    found = re.fullmatch(r"(?:un|tightly )?pruned, context (\d+)", label)
    if found is None:
        raise ValueError(f"label {label!r} names no training context; expected one like 'pruned, context 4096'")
    return int(found[1])


@lru_cache(maxsize=8)
def skipped(study: Study) -> tuple[Skipped, ...]:
    """By training context, each evaluated at its own. ValueError if nothing is stored."""
    groups: dict[str, list[tuple[pd.DataFrame, dict]]] = {}
    for line, rows, meta in study.evaluations(KIND):
        groups.setdefault(line.label, []).append((rows, meta["spec"]))
    if not groups:
        raise ValueError(f"{study.stem}: no evaluations of pruning are stored; run its experiment first")
    return tuple(sorted((_skipped(label, seeds) for label, seeds in groups.items()), key=lambda each: each.context))


def _skipped(label: str, seeds: list[tuple[pd.DataFrame, dict]]) -> Skipped:
    shares = [_by_head(rows, "tiles_pruned") for rows, _ in seeds]
    rows, spec = seeds[0]
    tiles = rows[rows["quantity"] == "first_tile"].sort_values("position")
    losses = rows[rows["head"] < 0].pivot(index="document", columns="quantity", values="value")
    return Skipped(
        label=label,
        context=int(spec["context_len"]),
        tile=int(spec["tile"]),
        share_SD=np.stack([share.to_numpy().mean(axis=1) for share in shares]),
        share_DH=np.mean([share.to_numpy() for share in shares], axis=0),
        heads=[(int(each[0]), int(each[1])) for each in shares[0].columns.to_list()],
        keys_read_H=np.mean([_by_head(own, "keys_read").to_numpy().mean(axis=0) for own, _ in seeds], axis=0),
        dropped_H=np.max([_by_head(own, "dropped").to_numpy().max(axis=0) for own, _ in seeds], axis=0),
        losses=losses,
        first={head: own["value"].to_numpy() for head, own in tiles.groupby(["layer", "head"])},  # type: ignore[misc]
        log_tolerance=float(spec["log_tolerance"]),
    )


def _by_head(rows: pd.DataFrame, quantity: str) -> pd.DataFrame:
    return (
        rows[rows["quantity"] == quantity].pivot(index="document", columns=["layer", "head"], values="value").sort_index(axis=1)
    )


def tile_note(found: tuple[Skipped, ...]) -> str:
    """In which tiles it was counted, for notes: the kernels' own, or smaller ones in short contexts."""
    sizes = sorted({each.tile for each in found})
    own = " (the kernels' own)" if sizes == [128] else ", where the kernels' own of 128 would be too few"
    return f"counted in tiles of {', '.join(map(str, sizes))} tokens{own}"


def on_gpu(machine: str) -> bool:
    """Only the GPU kernels skip what a single head prunes; the CPU path skips what all heads do."""
    return not machine.endswith("cores")
