"""Effects with their standard errors, and the rule by which claims are judged.

Everything that is judged is a contrast: a sum of coefficients times means of models. Its variance always has two parts:

    var = sum over models of (variance between seeds of the model's contribution) / (number of its seeds)
        + variance of the sum over items, paired across models, clustered by the source of the items.

* Seeds: a model with three or more seeds has its own variance. With fewer, the variance is pooled over all repeated trainings
  of the size (analysis/seeds.py), and its degrees of freedom count once, however many models share it. If nothing was
  repeated, the claim cannot be decided.
* Items: documents of one book are not independent samples. Their influences are summed by book; G books leave G - 1 degrees of
  freedom. Needles of one sample share haystack and sentence (in needle_choice only the haystack) at every length and depth, and
  are summed likewise. Items whose source is not known (examples, sequences) are their own clusters.
* Positions: losses are stored by bands, so a stretch shorter than a band is compared over the whole band (analysis/curves.py).
* Shares of right answers have Wilson's interval, which stays within 0% and 100%; a difference of two shares stays within -100%
  and 100%. Its error is at least that of one differing item, as samples may agree by chance.
* Intervals and tests use Student's t with Satterthwaite's degrees of freedom. A claim requires all of its inequalities
  (analysis/verdict.py); the claims of one artefact are one family (Holm): 5% for any wrong verdict among them.

`tests/analysis/test_statistics.py` simulates how often verdicts are wrong when the truth is known.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.student import below, quantile

LEVEL = 0.95
POWER = 0.8
OWN = 3
"""Number of seeds from which a model's own spread is its noise. Models differ in spread (at mini from 0.003 to 0.029 nats, and
beyond the training context by more), so that another model's would be too wide or too narrow."""
TWENTY_TO_EIGHTY = 2 * 0.8416
"""Distance of the 20% and 80% quantiles of a normal distribution, in standard deviations."""


@dataclass(frozen=True)
class Noise:
    """Variance between seeds of a functional of one model; `where`: the runs from which it is estimated."""

    variance: float
    df: float
    where: str = ""


@dataclass(frozen=True)
class Part:
    """A source of noise in an estimate: its variance, from `count` repetitions of `what` (seeds, books, documents)."""

    what: str
    variance: float
    df: float
    count: int


@dataclass(frozen=True)
class Estimate:
    """Effect with its noise. `error`: standard error with `df` degrees of freedom; None if the spread is not known (printed
    numbers). `parts`: components of the error. `seeds`: the fewest of any model in it; 0 without seeds. `seeds_known`: False if
    some model has one seed and none like it was repeated, so that the error lacks the seeds' part. `where`: the runs from which
    seeds' noise is estimated. `whole`: value of 100% (1 or 100) in a share or a difference of two shares. `counted`: number of
    items in a share, over all seeds; 0 for anything else."""

    effect: float
    error: float | None = None
    df: float = np.inf
    parts: tuple[Part, ...] = ()
    seeds: int = 0
    seeds_known: bool = True
    where: tuple[str, ...] = ()
    whole: float = np.inf
    counted: int = 0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the 95% interval."""
        if self.error is None:
            return None
        times = quantile(self.df, (1 + LEVEL) / 2)
        if self.counted:
            more = times**2 / self._independent
            middle = (self.effect + more * self.whole / 2) / (1 + more)
            half = math.sqrt(more * (self.effect * (self.whole - self.effect) + more * self.whole**2 / 4)) / (1 + more)
            return max(middle - half, 0.0), min(middle + half, self.whole)
        half = times * self.error
        return max(self.effect - half, -self.whole), min(self.effect + half, self.whole)

    @property
    def _independent(self) -> float:
        """Number of independent items that would give a share this error, at most as many as were counted."""
        spread = abs(self.effect) * (self.whole - abs(self.effect))
        error = self.error or 0.0
        return min(self.counted, spread / error**2) if spread and error > self.whole / self.counted else self.counted

    @property
    def detectable(self) -> float | None:
        """Smallest effect that a design with this error would distinguish from none in 80% of repetitions, at 95%."""
        if self.error is None:
            return None
        return (quantile(self.df, (1 + LEVEL) / 2) + quantile(self.df, POWER)) * self.error

    def p_not_above(self, bound: float, *, strict: bool = True) -> float:
        """Return the one-sided p-value against "the true effect is at most `bound`". If the error is None or 0, it is 0 or 1,
        and equality counts as above unless `strict`. NaN is never above."""
        if not self.error or not np.isfinite(self.effect):
            above = self.effect > bound or (self.effect == bound and not strict)
            return 0.0 if above else 1.0
        error = self.error
        if self.counted and 0 < abs(bound) < self.whole:  # the bounds that are not rejected are Wilson's interval
            error = math.sqrt(abs(bound) * (self.whole - abs(bound)) / self._independent)
        return below(self.df, -(self.effect - bound) / error)

    def negative(self) -> "Estimate":
        return replace(self, effect=-self.effect)

    def needed(self, size: float) -> dict[str, int]:
        """Return how many seeds, books and so on would make an effect of `size` detectable, by `Part.what`."""
        target = (size / (quantile(np.inf, (1 + LEVEL) / 2) + quantile(np.inf, POWER))) ** 2
        noisy = [part for part in self.parts if part.variance > 0]
        more = [(part.what, math.ceil(part.count * max(1.0, len(noisy) * part.variance / target))) for part in noisy]
        return {what: max(count for other, count in more if other == what) for what, _ in more}


@dataclass(frozen=True)
class Term:
    """One mean of a contrast. `source` names the model: terms of one source share its seeds. `seeds` (S,): the mean for every
    seed. `influence` (D,): influence of each item on the mean (over seeds), 0 on average; empty if it is not known. `clusters`
    (D,): the source of each item; None if each item is its own. `items`, `grouped_by`: names of items and clusters."""

    source: object
    coefficient: float
    seeds: np.ndarray
    influence: np.ndarray
    clusters: np.ndarray | None = None
    items: str = "documents"
    grouped_by: str = "sources of the text"

    @classmethod
    def of(
        cls,
        source: object,
        coefficient: float,
        values_SD: np.ndarray,
        clusters: np.ndarray | None = None,
        items: str = "documents",
    ) -> "Term":
        """Make a term from one value per seed and item."""
        mean_D = values_SD.mean(axis=0)
        return cls(source, coefficient, values_SD.mean(axis=1), mean_D - mean_D.mean(), clusters, items)


def contrast(terms: Sequence[Term], noises: Mapping[Any, Noise | None] | None = None) -> Estimate:
    """Return the sum of the terms. Influences of equal length belong to the same items in the same order. `noises`: seeds'
    noise of the sum of a source's terms; without it, only the source's own seeds are used."""
    effect = float(sum(term.coefficient * term.seeds.mean() for term in terms))
    seeds = min((len(term.seeds) for term in terms), default=0)
    if not np.isfinite(effect):
        return Estimate(effect, seeds=seeds)
    by_source: dict[object, np.ndarray] = {}
    for term in terms:
        by_source[term.source] = by_source.get(term.source, 0.0) + term.coefficient * term.seeds
    used = {
        source: own_noise(values) if len(values) >= OWN else (noises or {}).get(source) or own_noise(values)
        for source, values in by_source.items()
    }
    parts = _seeds(by_source, used)
    for length in dict.fromkeys(len(term.influence) for term in terms):
        alike = [term for term in terms if len(term.influence) == length]
        if length > 1:
            parts.append(_items(np.sum([term.coefficient * term.influence for term in alike], axis=0), alike[0]))
    known = all(noise is not None for noise in used.values())
    where = tuple(dict.fromkeys(noise.where for noise in used.values() if noise is not None and noise.where))
    return replace(combined(effect, parts), seeds=seeds, seeds_known=known, where=where)


def own_noise(values_S: np.ndarray) -> Noise | None:
    """Return the noise between the seeds themselves; None for one seed."""
    return Noise(float(values_S.var(ddof=1)), len(values_S) - 1.0) if len(values_S) > 1 else None


def _seeds(by_source: Mapping[object, np.ndarray], noises: Mapping[object, Noise | None]) -> list[Part]:
    """Return the seeds' parts, one per pool: models that share a pool share its estimate and so its degrees of freedom."""
    pools: dict[object, list[Part]] = defaultdict(list)
    for source, values_S in by_source.items():
        noise, count = noises[source], len(values_S)
        if noise is not None and np.isfinite(noise.df):
            pools[noise.where or (source,)].append(Part("seeds", noise.variance / count, noise.df, count))
    return [
        Part("seeds", sum(each.variance for each in pool), min(each.df for each in pool), min(each.count for each in pool))
        for pool in pools.values()
    ]


def _items(influence: np.ndarray, term: Term) -> Part:
    """Return the items' part: the variance of a mean whose items are drawn cluster by cluster."""
    items, what = len(influence), term.items
    if term.clusters is not None:
        _, which = np.unique(term.clusters, return_inverse=True)
        influence, what = np.bincount(which, weights=influence), term.grouped_by
    count = len(influence)
    if count < 2:
        return Part(what, 0.0, np.inf, count)
    return Part(what, count / (count - 1) * float((influence**2).sum()) / items**2, count - 1.0, count)


def combined(effect: float, parts: Sequence[Part]) -> Estimate:
    """Return an effect with independent sources of noise, whose degrees of freedom are Satterthwaite's."""
    variance = sum(part.variance for part in parts)
    if not variance:
        return Estimate(effect, 0.0 if parts else None, parts=tuple(parts))
    shares = sum(part.variance**2 / part.df for part in parts)
    return Estimate(effect, variance**0.5, variance**2 / shares if shares else np.inf, tuple(parts))


def share(mean: Estimate, counted: int, whole: float = 100.0) -> Estimate:
    """Return the mean of `counted` items, each right (`whole`) or wrong (0), as a share."""
    return replace(apart(mean, counted, whole), counted=counted)


def apart(difference: Estimate, counted: int, whole: float = 100.0) -> Estimate:
    """Return a difference of shares of `counted` items. Its error is at least that of one item: samples may agree by chance."""
    if difference.error is None or difference.error >= whole / counted:
        return replace(difference, whole=whole)
    df = difference.df if difference.error else min((part.df for part in difference.parts), default=np.inf)
    return replace(difference, error=whole / counted, df=df, whole=whole)


def stratified(values: np.ndarray, strata: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean of the strata's means (tasks, cells of a grid), and the influence of every value on it, from the
    variation inside the strata. If a stratum has one value only, its spread is not known and the influence is empty."""
    _, which = np.unique(strata, return_inverse=True)
    counts = np.bincount(which)
    means = np.bincount(which, weights=values) / counts
    if counts.min() < 2:
        return float(means.mean()), np.empty(0)
    return float(means.mean()), (values - means[which]) * len(values) / (len(counts) * counts[which])


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given, which control the error rate of the whole family."""
    order, adjusted = np.argsort(p_values, kind="stable"), np.empty(len(p_values))
    each = np.arange(len(order), 0, -1) * np.asarray(p_values)[order]
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(each))
    return adjusted.tolist()
