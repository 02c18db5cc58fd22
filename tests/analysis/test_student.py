import math

import pytest
from scipy.special import fdtrc, stdtr, stdtrit

from analysis.student import below, f_beyond, quantile


@pytest.mark.parametrize("df", [1, 1.5, 2, 4, 5.3, 19.2, 333.3, 1e4, math.inf])
def test_probabilities_and_quantiles_are_those_of_scipy(df):
    for t in (-30.0, -8.0, -3.0, -1.0, -0.01, 0.0, 0.5, 2.0, 6.0):
        assert below(df, t) == pytest.approx(stdtr(df, t), rel=1e-9)
    for p in (0.6, 0.8, 0.975, 0.995):
        assert quantile(df, p) == pytest.approx(stdtrit(df, p), rel=1e-9)


@pytest.mark.parametrize(("df", "under"), [(1, 1), (1, 2.9), (2, 2.9), (2, 24.5), (5, 1e4)])
def test_the_tail_of_f_is_that_of_scipy(df, under):
    for f in (0.0, 0.1, 1.0, 18.2, 500.0):
        assert f_beyond(df, under, f) == pytest.approx(fdtrc(df, under, f), rel=1e-9)
