"""Needle rows as figures and claims use them: the paper's score and, where no model scores, recall in nats.

Recall of a needle is the log-probability of its answer with the needle in the text minus that without it: 0 where the text is
of no use, and above 0 long before a model can say the answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pandas as pd

from analysis.names import rank
from analysis.panels import ColourScale
from analysis.seeds import NOTHING, Repeated, Repeats, family_of, repeats_for
from analysis.statistics import Estimate, Noise, Term, contrast, stratified
from analysis.study import Study
from analysis.style import tokens

SCORE, RECALL = "needle", "needle_recall"
MODES = ("easy", "standard", "passkey")
LOWEST_SCORE, FLOOR = 1.0, 2.0
CELL = ["length", "depth"]


@dataclass(frozen=True, eq=False)
class Needles:
    """`rows`: label, model, seed, run_id, mode, length, depth, sample, value. `unit`: "points" (1 to 10) or "nats".
    `families`: architecture by run_id; `repeats`: what seeds' noise is estimated from."""

    rows: pd.DataFrame
    unit: str
    at_floor: bool
    column: str = "score"
    families: dict[str, str] = field(default_factory=dict)
    repeats: Repeats = NOTHING

    @property
    def modes(self) -> list[str]:
        return [mode for mode in MODES if mode in set(self.rows["mode"])]

    @property
    def labels(self) -> list[str]:
        """Labels in the paper's order of models, then as in the artefact."""
        models = self.rows.drop_duplicates("label").set_index("label")["model"]
        return sorted(models.index, key=lambda label: rank(models[label]))

    def of(self, *, label: str | None = None, model: str | None = None, mode: str, low: float = 0, high: float = np.inf):
        """Needles of a label or model and mode at lengths low..high."""
        rows = self.rows[(self.rows["mode"] == mode) & (self.rows["length"] >= low) & (self.rows["length"] <= high)]
        return rows[rows["label"] == label] if label is not None else rows[rows["model"] == model]

    def mean_of(self, rows: pd.DataFrame) -> Estimate:
        return self._contrast((1.0, rows))

    def difference(self, one: pd.DataFrame, other: pd.DataFrame) -> Estimate:
        """Mean of `one` minus mean of `other`, needle by needle."""
        return self._contrast((1.0, one), (-1.0, other))

    def _contrast(self, *means: tuple[float, pd.DataFrame]) -> Estimate:
        terms = [term(coefficient, rows) for coefficient, rows in means]
        noises = {own.source: self._seed_noise(rows) for own, (_, rows) in zip(terms, means, strict=True)}
        return contrast(terms, noises)

    def _seed_noise(self, rows: pd.DataFrame) -> Noise | None:
        """Return the noise between seeds of the mean over the same cells."""
        asked = pd.MultiIndex.from_frame(rows[["mode", *CELL]].drop_duplicates()).sort_values()

        def functional(other: Repeated) -> np.ndarray | None:
            own = _cell_means(other, self.column)
            if not all(asked.isin(seed.index).all() for seed in own):
                return None
            return np.array([seed.loc[asked].mean() for seed in own])

        return self.repeats.noise(str(rows["scale"].iloc[0]), self.families.get(rows["run_id"].iloc[0], ""), functional)

    @property
    def colours(self) -> ColourScale:
        """Red to green from 1 to 10; recall symmetrical about 0, to the largest mean of a cell."""
        if self.unit == "points":
            return ColourScale("RdYlGn", LOWEST_SCORE, 10.0, "score")
        cells = self.rows.groupby(["label", "mode", *CELL])["value"].mean()
        limit = max(float(cells.abs().max()), 1e-3)
        return ColourScale("PuOr_r", -limit, limit, "recall (nats)")

    @property
    def note(self) -> str:
        """Meaning of the colours, for the note above a figure."""
        if self.unit == "points":
            judges = sorted(set(self.rows["scored_by"]))
            scored = "match of the answer" if judges == ["match"] else " and ".join(judges)
            floor = "; no model finds it: all scores are at the floor" if self.at_floor else ""
            return f"scores 1 (red) to 10 (green) by {scored}{floor}"
        limit = self.colours.high
        return (
            "no model scores above the floor, so recall is drawn: log-probability of the answer with the needle in the text "
            f"minus without, from \N{MINUS SIGN}{limit:.2g} (purple) over 0 (white) to {limit:.2g} nats (orange)"
        )


@lru_cache(maxsize=256)
def _cell_means(repeated: Repeated, column: str) -> tuple[pd.Series, ...]:
    """Means over a cell's needles by mode, length and depth, one series a seed."""
    return tuple(rows.groupby(["mode", *CELL])[column].mean() for rows in repeated.rows)


@lru_cache(maxsize=64)  # more than a scale has artefacts: `render` draws all, then reports on all
def needles(study: Study) -> Needles:
    """The scores; where every model's mean is near the lowest inside the training context, the recall if it is stored.

    ValueError if nothing is stored.
    """
    scores, recall = (_rows(study, kind, column) for kind, column in ((SCORE, "score"), (RECALL, "recall_nats")))
    if scores.empty and recall.empty:
        raise ValueError(f"{study.stem}: no needles are stored; run its experiment first")
    means = scores.groupby(["label", "mode"])["value"].mean() if len(scores) else pd.Series(dtype=float)
    at_floor = not (means >= FLOOR).any()
    if at_floor and len(recall):
        return Needles(recall, "nats", at_floor, "recall_nats", _families(study), _repeats(study, RECALL))
    return Needles(scores, "points", at_floor, "score", _families(study), _repeats(study, SCORE))


def _families(study: Study) -> dict[str, str]:
    return {line.run_id: family_of(study.spec(line.run_id)["model"]) for line in study.lines}


def _repeats(study: Study, kind: str) -> Repeats:
    return repeats_for(study.results_dir, study.scale, kind)


def _rows(study: Study, kind: str, column: str) -> pd.DataFrame:
    rows = study.rows(kind)
    if rows.empty:
        return rows
    return rows.assign(value=rows[column]).sort_values(["label", "seed", "mode", *CELL, "sample"], ignore_index=True)


def longest_inside(train_len: int) -> float:
    """Longest needle prompt counted as inside the training context: the paper's 13,400 of 16,384, scaled."""
    return train_len * 13_400 / 16_384


def term(coefficient: float, rows: pd.DataFrame) -> Term:
    """Mean over the cells of a grid, of one model's rows. What varies inside the cells is the noise of the needles; with one
    needle per cell, what varies between them."""
    per_seed = [own for _, own in rows.groupby("run_id", sort=False)]
    values_SD = np.stack([own["value"].to_numpy() for own in per_seed])
    cells = per_seed[0].groupby(CELL).ngroup().to_numpy()
    seeds = np.array([stratified(values_D, cells)[0] for values_D in values_SD])
    mean_D = values_SD.mean(axis=0)
    influence = stratified(mean_D, cells)[1]
    source = rows["label"].iloc[0], rows["model"].iloc[0]
    return Term(source, coefficient, seeds, influence if len(influence) else mean_D - mean_D.mean(), items="needles")


def num_seeds(frames: Iterable[pd.DataFrame]) -> int:
    return min(rows["run_id"].nunique() for rows in frames)


def places(train_len: int) -> dict[str, tuple[str, float, float]]:
    """Inside and beyond the training context: title, lowest and highest length."""
    return {
        "inside": (f"up to {tokens(train_len)}", 0, train_len),
        "beyond": (f"beyond {tokens(train_len)}", train_len + 1, np.inf),
    }
