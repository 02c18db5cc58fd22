"""Whether stick-breaking gains from giving what is left of the stick to the token's own value."""

from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import get_scale

TITLE = "Remainder term of stick-breaking attention"
PAPER = "Stick-breaking: remainder"
SHOWS = "Stick-breaking without and with the remainder r times the token's own value; the released models go without it."
CLAIMS = ("S8",)


def runs(scale, seeds):
    at = get_scale(scale.extrapolation)
    yield from recipes(at, "stick_breaking", seeds)
    axes = dict(stick_remainder=True)
    yield from recipes(at, "stick_breaking", seeds, axes=axes, label="with remainder", model=axes)
