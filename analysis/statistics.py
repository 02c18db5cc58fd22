"""Effects with their standard errors, and the rule by which claims are judged.

Everything that is judged is a contrast: a sum of coefficients times means of models. Two kinds of noise enter, always:

    var = sum over models of (variance between seeds of what is taken from the model) / (its seeds)
        + variance of the sum over items, paired across models, clustered by the source of the items.

* Seeds: a model of three seeds or more has its own variance. Of fewer it is pooled over all repeated trainings of the size
  (analysis/seeds.py), whose degrees of freedom count once, however many models share it. Where nothing was repeated the claim
  cannot be decided.
* Items: documents of one book are no independent draws. Their influences are summed by book; G books leave G - 1 degrees of
  freedom. Needles of one sample hide one sentence at one place, whatever the length and depth, and are summed likewise. Items
  whose source is not known (examples, sequences) are their own clusters.
* Positions: losses are stored by bands, so what is shorter than a band is compared over the whole band (analysis/curves.py).
* Shares: of things that are right or wrong the interval is Wilson's, which stays between none and all, and a difference of two
  shares stays between minus all and all. Of samples that agree by chance one more is taken to be able to differ.
* Intervals and tests take Student's t with Satterthwaite's degrees of freedom. A claim is all of its inequalities
  (analysis/verdict.py); the claims of one artefact are one family (Holm): 5% for any wrong verdict among them.

`python -m tests.analysis.simulate` prints how often verdicts are wrong where the truth is known, by this rule and without it.
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
"""Seeds from which a model's own spread is its noise. Models differ in it (at mini from 0.003 to 0.029 nats, and beyond the
training context by more), and another's would be too wide for one and too narrow for the other."""
TWENTY_TO_EIGHTY = 2 * 0.8416
"""Distance of the 20% and 80% quantiles of a normal distribution, in standard deviations."""


@dataclass(frozen=True)
class Noise:
    """Variance between seeds of what is taken from a model of one seed; `where`: the runs that it is estimated from."""

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
    """`error`: standard error with `df` degrees of freedom; None where nothing is known of the spread (printed numbers).
    `parts`: what the error is made of. `seeds`: the fewest of any model in it, 0 of what has none. `seeds_known`: False where
    some model has one seed and none like it was repeated, so that the error lacks the seeds' part. `where`: the runs that
    seeds' noise is estimated from. `whole`: what all would be (1 or 100), of a share or a difference of two. `counted`: how
    many things a share is of, over all seeds, 0 of anything else."""

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
        """Count the independent things that would have a share's error, at most as many as were counted."""
        spread = abs(self.effect) * (self.whole - abs(self.effect))
        error = self.error or 0.0
        return min(self.counted, spread / error**2) if spread and error > self.whole / self.counted else self.counted

    @property
    def detectable(self) -> float | None:
        """The smallest effect that a design with this error would tell from none in 80% of repetitions, at 95%."""
        if self.error is None:
            return None
        return (quantile(self.df, (1 + LEVEL) / 2) + quantile(self.df, POWER)) * self.error

    def p_not_above(self, bound: float, *, strict: bool = True) -> float:
        """One-sided p-value against "the true effect is at most `bound`". Without an error, or with none: 0 or 1, and equality
        counts as above unless `strict`. NaN is above nothing."""
        if not self.error or not np.isfinite(self.effect):
            above = self.effect > bound or (self.effect == bound and not strict)
            return 0.0 if above else 1.0
        error = self.error
        if self.counted and 0 < abs(bound) < self.whole:  # what is not rejected is Wilson's interval
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
    seed. `influence` (D,): how far each item pulls the mean (of all seeds) away, 0 on average; empty where it is not known.
    `clusters` (D,): the source of each item, which are called `grouped_by`; None where each is its own."""

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
        """Mean of one value per seed and item."""
        mean_D = values_SD.mean(axis=0)
        return cls(source, coefficient, values_SD.mean(axis=1), mean_D - mean_D.mean(), clusters, items)


def contrast(terms: Sequence[Term], noises: Mapping[Any, Noise | None] | None = None) -> Estimate:
    """Sum of the terms. Influences of one length belong to the same items in the same order. `noises`: seeds' noise of what the
    terms of a source take together; without it a source's own seeds are all that is known of it."""
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
    """Return the noise between the seeds themselves; None of one seed."""
    return Noise(float(values_S.var(ddof=1)), len(values_S) - 1.0) if len(values_S) > 1 else None


def _seeds(by_source: Mapping[object, np.ndarray], noises: Mapping[object, Noise | None]) -> list[Part]:
    """Return the seeds' parts: one for each pool, whose degrees of freedom are the same draws for all models that share it."""
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
    """An effect with independent sources of noise, added up as Satterthwaite does."""
    variance = sum(part.variance for part in parts)
    if not variance:
        return Estimate(effect, 0.0 if parts else None, parts=tuple(parts))
    shares = sum(part.variance**2 / part.df for part in parts)
    return Estimate(effect, variance**0.5, variance**2 / shares if shares else np.inf, tuple(parts))


def share(mean: Estimate, counted: int, whole: float = 100.0) -> Estimate:
    """Return the mean of so many things, each right (`whole`) or wrong (0), as the share that it is."""
    return replace(apart(mean, counted, whole), counted=counted)


def apart(difference: Estimate, counted: int, whole: float = 100.0) -> Estimate:
    """Return a difference of shares of so many things. Its error is that of one thing or more: samples may agree by chance."""
    if difference.error is None or difference.error >= whole / counted:
        return replace(difference, whole=whole)
    df = difference.df if difference.error else min((part.df for part in difference.parts), default=np.inf)
    return replace(difference, error=whole / counted, df=df, whole=whole)


def stratified(values: np.ndarray, strata: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean of the strata's means (tasks, cells of a grid), and the influence of every value on it: what varies inside them. A
    stratum of one value has no spread of its own: then there is no influence (length 0)."""
    _, which = np.unique(strata, return_inverse=True)
    counts = np.bincount(which)
    means = np.bincount(which, weights=values) / counts
    if counts.min() < 2:
        return float(means.mean()), np.empty(0)
    return float(means.mean()), (values - means[which]) * len(values) / (len(counts) * counts[which])


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: the error rate of the whole family."""
    order, adjusted = np.argsort(p_values, kind="stable"), np.empty(len(p_values))
    each = np.arange(len(order), 0, -1) * np.asarray(p_values)[order]
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(each))
    return adjusted.tolist()
