"""Student's t distribution and the tail of F for any positive degrees of freedom, without scipy, which would add 113 MB to the
small environment."""

import math
from functools import lru_cache
from statistics import NormalDist


def below(df: float, t: float) -> float:
    """Return the probability of a value below t."""
    if math.isinf(df):
        return math.erfc(-t / math.sqrt(2)) / 2
    tail = _incomplete_beta(df / (df + t * t), df / 2, 0.5) / 2
    return tail if t < 0 else 1 - tail


@lru_cache(maxsize=4096)
def quantile(df: float, p: float) -> float:
    """Return the quantile at p, 0.5 or more, by Newton's method, which rises from the normal quantile below it."""
    t = NormalDist().inv_cdf(p)
    scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2 if math.isfinite(df) else 0.0
    for _ in range(100 if math.isfinite(df) else 0):
        step = (p - below(df, t)) / math.exp(scale - (df + 1) / 2 * math.log1p(t * t / df))
        t += step
        if abs(step) < 1e-9 * t:
            break
    return t


def f_beyond(df: float, under: float, f: float) -> float:
    """Return the probability that a ratio of two variances exceeds f; `under`: degrees of freedom of the second, finite."""
    return _incomplete_beta(under / (under + df * f), under / 2, df / 2)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by Lentz's evaluation of its continued fraction."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    if x == 0:
        return 0.0
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value, number = d, 0
    while number < 1_000 and abs(c * d - 1) > 1e-15:
        number += 1
        end = a + 2 * number
        for share in (number * (b - number) / ((end - 1) * end), -(a + number) * (a + b + number) / (end * (end + 1))):
            c, d = 1 + share * x / c, 1 / (1 + share * x * d)
            value *= c * d
    logs = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return value * math.exp(logs) / a
