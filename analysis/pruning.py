"""Evaluations of pruning as figures and claims use them. A line has a pruning rule and a training context.

Suffixes: D documents, H heads of all layers, M query tiles."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from analysis.seeds import Measured
from analysis.statistics import Estimate, Term, contrast
from analysis.study import Evaluation, Study

KIND = "pruning"


@dataclass(frozen=True, eq=False, kw_only=True)
class Skipped(Measured):
    """Evaluations of one series. `share_SD`: skipped share of the causal tiles. `by_head`: by layer and head this share
    (tiles_pruned) and keys_read, means over seeds and documents, and the largest probability lost by a query (dropped).
    `losses` and `first` are the first seed's; `first`: (layer, head) -> first key tile that each query tile of document 0
    computes (M,)."""

    context: int
    tile: int
    share_SD: np.ndarray
    by_head: pd.DataFrame
    losses: pd.DataFrame
    first: dict[tuple[int, int], np.ndarray]
    log_tolerance: float

    @property
    def mean_H(self) -> np.ndarray:
        return self.by_head["tiles_pruned"].to_numpy()

    def term(self, coefficient: float) -> Term:
        """Return the mean share over heads, whose noise is that of documents and, if there are several, of seeds."""
        return Term.of(self, coefficient, self.share_SD, self.sources_D)

    @property
    def share(self) -> Estimate:
        return contrast([self.term(1.0)])


@lru_cache(maxsize=64)  # more than a scale has artefacts: `render` draws all, then reports on all
def skipped(study: Study, rule: str | None = None) -> tuple[Skipped, ...]:
    """Return the evaluations in the order of their contexts; `rule`: pruning rule, None for the models' own. ValueError if
    nothing is stored."""
    found = [_skipped(study, group) for group in study.by_series(KIND, "evaluations of pruning", rule=rule)]
    return tuple(sorted(found, key=lambda each: each.context))


def _skipped(study: Study, seeds: list[Evaluation]) -> Skipped:
    line, rows, meta = seeds[0]
    shares, read, dropped = (
        np.stack([_by_head(own, quantity).to_numpy() for _, own, _ in seeds])
        for quantity in ("tiles_pruned", "keys_read", "dropped")
    )
    means = {"tiles_pruned": shares.mean(axis=0).mean(axis=0), "keys_read": read.mean(axis=(0, 1))}
    spec = meta["spec"]
    tiles = rows[rows["quantity"] == "first_tile"].sort_values("position")
    return Skipped(
        **study.measured(line, meta, shares.shape[1]),
        context=int(spec["context_len"]),
        tile=int(spec["tile"]),
        share_SD=shares.mean(axis=2),
        by_head=pd.DataFrame({**means, "dropped": dropped.max(axis=(0, 1))}, _by_head(rows, "tiles_pruned").columns),
        losses=rows[rows["head"] < 0].pivot(index="document", columns="quantity", values="value"),
        first={head: own["value"].to_numpy() for head, own in tiles.groupby(["layer", "head"])},  # type: ignore[misc]
        log_tolerance=float(spec["log_tolerance"]),
    )


def _by_head(rows: pd.DataFrame, quantity: str) -> pd.DataFrame:
    own = rows[rows["quantity"] == quantity]
    return own.pivot(index="document", columns=["layer", "head"], values="value").sort_index(axis=1)


def tile_note(found: tuple[Skipped, ...]) -> str:
    """Describe the tiles that were counted, for notes: the kernels' own, or smaller ones in short contexts."""
    sizes = sorted({each.tile for each in found})
    own = " (the kernels' own)" if sizes == [128] else ", where the kernels' own of 128 would be too few"
    return f"counted in tiles of {', '.join(map(str, sizes))} tokens{own}"
