"""Effects with their standard errors: items (documents, examples, needles) paired across models, seeds of each independent.

Everything that is judged is a contrast: a sum of coefficients times means. Its variance is that of a bootstrap which resamples
every model's seeds and, inside, the items, the same for all models; for means infinitely many draws have this closed form,

    var = var over items of the paired influence / D  +  sum over models of var over seeds / S,

which needs no random numbers. Intervals and tests take Student's t with Satterthwaite's degrees of freedom: the plain
percentiles of a bootstrap over three seeds would cover about 75% where 95% is said. With one seed only the items vary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

LEVEL = 0.95
POWER = 0.8
TWENTY_TO_EIGHTY = 2 * 0.8416
"""Distance of the 20% and 80% quantiles of a normal distribution, in standard deviations."""


@dataclass(frozen=True)
class Estimate:
    """`error`: standard error with `df` degrees of freedom; None where nothing is known of the spread (printed numbers)."""

    effect: float
    error: float | None = None
    df: float = np.inf

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the 95% interval."""
        if self.error is None:
            return None
        half = float(stdtrit(self.df, (1 + LEVEL) / 2)) * self.error if self.error else 0.0
        return self.effect - half, self.effect + half

    @property
    def detectable(self) -> float | None:
        """The smallest effect that a design with this error would tell from none in 80% of repetitions, at 95%."""
        if self.error is None:
            return None
        return float(stdtrit(self.df, (1 + LEVEL) / 2) + stdtrit(self.df, POWER)) * self.error if self.error else 0.0

    def p_not_above(self, bound: float, *, strict: bool = True) -> float:
        """One-sided p-value against "the true effect is at most `bound`". Without an error, or with none: 0 or 1, and equality
        counts as above unless `strict`. NaN is above nothing."""
        if not self.error or not np.isfinite(self.effect):
            above = self.effect > bound or (self.effect == bound and not strict)
            return 0.0 if above else 1.0
        return float(stdtr(self.df, -(self.effect - bound) / self.error))

    def negative(self) -> "Estimate":
        return Estimate(-self.effect, self.error, self.df)


@dataclass(frozen=True)
class Term:
    """One mean of a contrast. `source` names the model: terms of one source share its seeds. `seeds` (S,): the mean for every
    seed. `influence` (D,): how far each item pulls the mean (of all seeds) away, 0 on average; empty where it is not known."""

    source: object
    coefficient: float
    seeds: np.ndarray
    influence: np.ndarray


def contrast(terms: Sequence[Term], extra: Sequence[tuple[float, float]] = ()) -> Estimate:
    """Sum of the terms. Influences of one length belong to the same items in the same order. `extra`: more noise, as (variance,
    degrees of freedom)."""
    effect = float(sum(term.coefficient * term.seeds.mean() for term in terms))
    if not np.isfinite(effect):
        return Estimate(effect)
    parts = list(extra)
    by_source: dict[object, np.ndarray] = {}
    by_length: dict[int, np.ndarray] = {}
    for term in terms:
        by_source[term.source] = by_source.get(term.source, 0.0) + term.coefficient * term.seeds
        length = len(term.influence)
        by_length[length] = by_length.get(length, 0.0) + term.coefficient * term.influence
    for values in (*by_source.values(), *by_length.values()):
        if len(values) > 1:
            parts.append((float(values.var(ddof=1)) / len(values), len(values) - 1.0))
    return combined(effect, parts)


def combined(effect: float, parts: Sequence[tuple[float, float]]) -> Estimate:
    """An effect with independent sources of noise: (variance, degrees of freedom) each, added up as Satterthwaite does."""
    if not parts:
        return Estimate(effect)
    variance = sum(part for part, _ in parts)
    if not variance:
        return Estimate(effect, 0.0)
    shares = sum(part**2 / df for part, df in parts)
    return Estimate(effect, variance**0.5, variance**2 / shares if shares else np.inf)


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
    order = np.argsort(p_values, kind="stable")
    adjusted, largest = np.empty(len(order)), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted.tolist()
