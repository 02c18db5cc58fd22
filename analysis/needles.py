"""Needle rows as figures and claims use them: the paper's score or, if no model scores above guessing, the choice of one word
of ten, or recall in nats.

Guessing makes the right choice in 10% of the cases. Recall of a needle is the log-probability of its answer with the needle in
the text minus that without it: 0 if the needle does not help, and above 0 long before a model can generate the answer."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import ListedColormap

from analysis.names import rank
from analysis.panels import ColourScale
from analysis.seeds import Functional, Repeated
from analysis.statistics import Estimate, Noise, Term, apart, contrast, share, stratified
from analysis.study import Study
from analysis.style import tokens

SCORE, CHOICE, RECALL = "needle", "needle_choice", "needle_recall"
COLUMNS = {SCORE: "score", CHOICE: "right", RECALL: "recall_nats"}
MODES = ("easy", "standard", "passkey")
FLOOR = 2.0
PERCENT_PER_POINT = 10.0
"""Percent of right choices that correspond to one point of the score: 10% (guessing) to 100% are 1 to 10 points."""
CELL = ["mode", "length", "depth"]


@dataclass(frozen=True, eq=False)
class Needles:
    """`rows`: label, model, seed, run_id, mode, length, depth, sample, value. `kind`: their kind of evaluation. `noises`: by
    run_id, the noise between seeds of a functional."""

    rows: pd.DataFrame
    kind: str
    noises: dict[str, Callable[[Functional], Noise | None]]

    @property
    def measure(self) -> str:
        """Description of the values, and why they are not the paper's."""
        floor = "no model's score from 1 to 10 leaves the floor"
        return {
            SCORE: "score from 1 to 10",
            CHOICE: f"right choices of one word of ten ({floor})",
            RECALL: f"recall (log-probability of the answer with minus without the needle; {floor})",
        }[self.kind]

    @property
    def unit(self) -> str:
        """Unit of the values: "points" (1 to 10), "percent" (of choices that are right), or "nats"."""
        return {SCORE: "points", CHOICE: "percent", RECALL: "nats"}[self.kind]

    @property
    def unit_apart(self) -> str:
        """Unit of a difference of two values: percentage points for percents."""
        return "percentage points" if self.kind == CHOICE else self.unit

    @property
    def per_point(self) -> float:
        """Equivalent of one point of the score, in the unit of the values."""
        return PERCENT_PER_POINT if self.kind == CHOICE else 1.0

    @property
    def at_floor(self) -> bool:
        """True if every model's mean is near the lowest value, that of guessing."""
        return all(self.guessed(rows) for _, rows in self.rows.groupby(["label", "mode"]))

    def guessed(self, rows: pd.DataFrame) -> bool:
        """Return whether the mean is near the lowest value, that of guessing. Recall has no floor."""
        return self.kind != RECALL and not rows["value"].mean() >= FLOOR * self.per_point

    @property
    def modes(self) -> list[str]:
        there = set(self.rows["mode"].unique())
        return [mode for mode in MODES if mode in there]

    @property
    def labels(self) -> list[str]:
        """Labels in the paper's order of models, then as in the artefact."""
        pairs = self.rows[["label", "model"]].drop_duplicates()
        models = dict(zip(pairs["label"], pairs["model"], strict=True))
        return sorted(models, key=lambda label: rank(models[label]))

    def of(self, *, label: str | None = None, model: str | None = None, mode: str, low: float = 0, high: float = np.inf):
        """Return the needles of a label or model and mode at lengths low..high."""
        rows = self.rows[(self.rows["mode"] == mode) & self.rows["length"].between(low, high)]
        return rows[rows["label"] == label] if label is not None else rows[rows["model"] == model]

    def mean_of(self, rows: pd.DataFrame) -> Estimate:
        mean = contrast([_term(1.0, rows)], {_name(rows): self._seed_noise(rows)})
        return share(mean, len(rows)) if self.kind == CHOICE else mean

    def difference(self, one: pd.DataFrame, other: pd.DataFrame) -> Estimate:
        """Return the mean of `one` minus the mean of `other`, paired by needle."""
        noises = {_name(rows): self._seed_noise(rows) for rows in (one, other)}
        lead = contrast([_term(1.0, one), _term(-1.0, other)], noises)
        return apart(lead, len(one)) if self.kind == CHOICE else lead

    def _seed_noise(self, rows: pd.DataFrame) -> Noise | None:
        """Return the noise between seeds of the mean over the same cells."""
        asked = pd.MultiIndex.from_frame(rows[CELL].drop_duplicates()).sort_values()

        def functional(other: Repeated) -> np.ndarray | None:
            own = _cell_means(other, COLUMNS[self.kind])
            there = all(asked.isin(seed.index).all() for seed in own)
            return np.array([seed.loc[asked].mean() for seed in own]) if there else None

        return self.noises[rows["run_id"].iloc[0]](functional)

    @property
    def colours(self) -> ColourScale:
        """Red to green from 1 to 10 or 10% to 100%; for recall, from white at 0 to the largest mean of a cell, rounded up so
        that figures share their limits, and extended below 0 only if cells lie there."""
        if self.kind != RECALL:
            return ColourScale("RdYlGn", self.per_point, 10.0 * self.per_point, "score" if self.kind == SCORE else "right (%)")
        cells = self.rows.groupby(["label", *CELL])["value"].mean()
        low, high = float(cells.min()), _rounded_up(max(float(cells.abs().max()), 1e-3))
        low = -_rounded_up(-low) if low < -0.05 * high else 0.0
        part = ListedColormap(colormaps["PuOr_r"](np.linspace(0.5 + 0.5 * low / high, 1.0, 256)))
        return ColourScale(part, low, high, "recall (nats)")

    @property
    def note(self) -> str:
        """Meaning of the colours, for the note above a figure."""
        if self.kind == CHOICE:
            count = self.rows.groupby(["run_id", *CELL]).size().max()
            colours = "from 10% by guessing (red) to 100% (green)"
            return f"share of {count} needles a cell whose word is the likeliest of ten, {colours}"
        if self.kind == SCORE:
            judges = sorted(set(self.rows["scored_by"]))
            scored = "match of the answer" if judges == ["match"] else " and ".join(judges)
            floor = "; no model finds it: all scores are at the floor" if self.at_floor else ""
            return f"scores 1 (red) to 10 (green) by {scored}{floor}"
        return "no score leaves the floor, so recall is drawn: log-probability of the answer with minus without the needle"


def _rounded_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(power * next(step for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9)))


def _name(rows: pd.DataFrame) -> tuple[str, str]:
    return rows["label"].iloc[0], rows["model"].iloc[0]


def _term(coefficient: float, rows: pd.DataFrame) -> Term:
    """Return the mean over the cells of a grid of one model's rows. Its noise is the variation inside the cells, summed by
    sample, which has one haystack and sentence in all cells; with one needle per cell, it is the variation between cells."""
    per_seed = [own for _, own in rows.groupby("run_id", sort=False)]
    values_SD = np.stack([own["value"].to_numpy() for own in per_seed])
    cells = per_seed[0].groupby(["length", "depth"]).ngroup().to_numpy()
    seeds = np.array([stratified(values_D, cells)[0] for values_D in values_SD])
    mean_D = values_SD.mean(axis=0)
    influence = stratified(mean_D, cells)[1]
    if not len(influence):
        return Term(_name(rows), coefficient, seeds, mean_D - mean_D.mean(), items="needles")
    samples = per_seed[0]["sample"].to_numpy()
    return Term(_name(rows), coefficient, seeds, influence, samples, items="needles", grouped_by="sentences that are hidden")


@lru_cache(maxsize=256)
def _cell_means(repeated: Repeated, column: str) -> tuple[pd.Series, ...]:
    """Return the means over a cell's needles by mode, length and depth, one series per seed."""
    return tuple(rows.groupby(CELL)[column].mean() for rows in repeated.rows)


@lru_cache(maxsize=64)  # more than a scale has artefacts: `render` draws all, then reports on all
def measures(study: Study) -> dict[str, Needles]:
    """Return an artefact's stored needles by kind of evaluation. ValueError if there are none."""
    found = {}
    for kind, column in COLUMNS.items():
        rows = study.rows(kind)
        if len(rows):
            rows = rows.assign(value=rows[column]).sort_values(["label", "seed", *CELL, "sample"], ignore_index=True)
            noises = {line.run_id: study.measured(line, meta)["noise"] for line, _, meta in study.evaluations(kind)}
            found[kind] = Needles(rows, kind, noises)
    if not found:
        raise study.nothing("needles")
    return found


def needles(study: Study) -> Needles:
    """Return the needles to judge by: the first of score, choice and recall in which some model leaves the floor, or else the
    first that is stored. ValueError if none are."""
    found = measures(study)
    return next((each for each in found.values() if not each.at_floor), next(iter(found.values())))


def longest_inside(train_len: int) -> float:
    """Longest needle prompt counted as inside the training context: the paper's 13,400 of 16,384, scaled."""
    return train_len * 13_400 / 16_384


def places(train_len: int) -> dict[str, tuple[str, float, float]]:
    """Inside and beyond the training context: title, lowest and highest length."""
    return {
        "inside": (f"up to {tokens(train_len)}", 0, train_len),
        "beyond": (f"beyond {tokens(train_len)}", train_len + 1, np.inf),
    }
