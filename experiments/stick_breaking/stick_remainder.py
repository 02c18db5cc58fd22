"""Stick-breaking: remainder: Remainder term of stick-breaking attention.

Stick-breaking without and with the remainder term, r times the token's own value; the released models do not have it."""

import numpy as np

from analysis.curves import LossCurve, difference, loss_curves, stored_curves
from analysis.study import Study
from analysis.style import about, tokens
from analysis.tables import Column, Table, over_seeds
from analysis.verdict import PERPLEXITY, Claim, Comparison, Verdict, decide, number
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.stick_breaking.stick_extrapolation import far

AXES = {"stick_remainder": bool | None}
WITH = "with remainder"


def runs(scale, seeds):
    at = far(scale)
    yield from recipes(at, "stick_breaking", seeds)
    axes = dict(stick_remainder=True)
    yield from recipes(at, "stick_breaking", seeds, axes=axes, label=WITH, model=axes)


def pair(study: Study) -> tuple[LossCurve | None, LossCurve | None]:
    """Return the curves without and with the remainder term."""
    curves = {"stick_remainder" in curve.axes: curve for curve in loss_curves(study)}
    return curves.get(False), curves.get(True)


def summary(study: Study) -> Table:
    """Tabulate the perplexity at the training length and at the evaluation length."""
    stored_curves(study)
    curves, train_len = [curve for curve in pair(study) if curve is not None], study.train_len
    lengths = sorted({train_len, curves[0].length})
    columns = [Column(f"ppl_{length}", f"P({tokens(length)})", 3, "lower") for length in lengths]
    values = {curve.label: [np.exp(curve.log_p(length)) for length in lengths] for curve in curves}
    note = f"{about(study)} Training length {tokens(train_len)}."
    return over_seeds("Remainder term of stick-breaking attention", columns, values, note)


def s8(study: Study) -> Verdict:
    """Perplexity with the remainder term is not below that without it, at the training length."""
    without, with_it = pair(study)
    if without is None or with_it is None:
        return decide("", [], ["stick-breaking with and without the remainder term"])
    above, length = difference(with_it, without), tokens(without.train_len)
    comparison = Comparison(f"P({length}), with the remainder against without", above, strict=False, unit=PERPLEXITY)
    sentence = f"The remainder term changes the perplexity at {length} tokens by {number(above.effect, PERPLEXITY)}."
    return decide(sentence, [comparison])


CLAIMS = (Claim("S8", "The remainder term does not help", s8),)
