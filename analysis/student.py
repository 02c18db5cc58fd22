"""Student's t distribution, also with infinitely many degrees of freedom, and the tail of F."""

import math

from scipy import special


def below(df: float, t: float) -> float:
    """Return the probability of a value below t."""
    return float(special.stdtr(df, t) if math.isfinite(df) else special.ndtr(t))


def quantile(df: float, p: float) -> float:
    """Return the quantile at p."""
    return float(special.stdtrit(df, p) if math.isfinite(df) else special.ndtri(p))


def f_beyond(df: float, under: float, f: float) -> float:
    """Return the probability that a ratio of two variances exceeds f; `under`: degrees of freedom of the second."""
    return float(special.fdtrc(df, under, f))
