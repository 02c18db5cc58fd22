"""Power law, value = a place^-b, fitted to estimates with noise."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from analysis.statistics import Estimate, Part, combined
from analysis.student import f_beyond

REFUTED = 0.05
"""A law is refuted if values that follow it would deviate this much with a probability below this."""
Value = tuple[float, float, float]
"""A number with the ends of its 95% interval, NaN if they are not known."""


class Law(NamedTuple):
    """A straight line in logs, fitted by weighted least squares. `x_N`, `logs`: logs of the places and of the values."""

    x_N: np.ndarray
    logs: list[Estimate]

    def _taken(self, shares_N: np.ndarray) -> Estimate:
        """Return a weighted sum of the logs, whose noise is independent, with Satterthwaite's degrees of freedom. Errors are
        widened if the values deviate from the law by more than their noise."""
        wider = math.sqrt(max(1.0, self.chi2 / self.df)) if self.df else 1.0
        errors = [wider * share * (log.error or 0.0) for share, log in zip(shares_N, self.logs, strict=True)]
        parts = [Part("trainings", error**2, log.df, 1) for error, log in zip(errors, self.logs, strict=True)]
        return combined(float(shares_N @ [log.effect for log in self.logs]), parts)

    def _shares(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the weights of the logs in their mean, their weights in the slope, and the weighted mean of `x_N`."""
        weights_N = np.array([log.error or 0.0 for log in self.logs]) ** -2.0
        mean_N = weights_N / weights_N.sum()
        away_N = self.x_N - mean_N @ self.x_N
        return mean_N, weights_N * away_N / (weights_N @ away_N**2), float(mean_N @ self.x_N)

    @property
    def df(self) -> int:
        return len(self.logs) - 2

    @property
    def chi2(self) -> float:
        """Sum of squared deviations of the values from the law, in units of their errors."""
        (mean_N, slope_N, centre), logs_N = self._shares(), np.array([log.effect for log in self.logs])
        off_N = logs_N - mean_N @ logs_N - (self.x_N - centre) * (slope_N @ logs_N)
        return float(((off_N / [log.error or 1.0 for log in self.logs]) ** 2).sum())

    @property
    def p(self) -> float:
        """Probability of a chi^2 this large if the law holds. As errors are estimated from few seeds, chi^2 / df is compared
        with an F distribution, with the fewest degrees of freedom of any error. 1 for two values, which any law fits."""
        return f_beyond(self.df, self._fewest, self.chi2 / self.df) if self.df else 1.0

    @property
    def _fewest(self) -> float:
        return min(log.df for log in self.logs)

    @property
    def refuted(self) -> bool:
        return self.p < REFUTED

    @property
    def fit(self) -> str:
        """Goodness of fit in words; empty for two values."""
        return f"F({self.df}, {self._fewest:.2g}) = {self.chi2 / self.df:.1f}, p {self.p:.1g}" if self.df else ""

    @property
    def exponent(self) -> Estimate:
        """Exponent b: above 0 if the value falls."""
        return self._taken(-self._shares()[1])

    def log_at(self, place: float) -> Estimate:
        """Return the log of the law's value at a place."""
        mean_N, slope_N, centre = self._shares()
        return self._taken(mean_N + (math.log(place) - centre) * slope_N)

    def at(self, place: float) -> Value:
        """Return the law's value at a place."""
        log = self.log_at(place)
        with np.errstate(over="ignore"):
            value, low, high = np.exp([log.effect, *(log.interval or ())]).tolist()
        return value, low, high


def law_of(values: Mapping[int, Estimate]) -> Law | None:
    """Fit a law to values by place, weighted by the errors of their logs, as if their noise were independent. Errors are
    widened by sqrt(chi^2 / (n - 2)) if that is above 1; with so few points this factor is itself uncertain, which the intervals
    ignore. None for fewer than two values, or if one is not above 0 or its noise is not known."""
    if len(values) < 2 or not all(each.effect > 0 and each.error and each.seeds_known for each in values.values()):
        return None
    return Law(np.log(list(values)), [log_of(each) for each in values.values()])


def log_of(value: Estimate) -> Estimate:
    """Return the log of a value, whose error is the value's relative error."""
    return Estimate(math.log(value.effect), (value.error or 0.0) / value.effect, value.df)
