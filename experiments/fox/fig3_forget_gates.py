"""Figure 3: forget-gate matrix F and attention matrix A of the most local and most global heads of FoX (Pro)."""

from experiments.evaluations import gates as evals  # noqa: F401
from experiments.recipes import recipes

TITLE = "Forget gates and attention"
PAPER = "Figure 3"
SHOWS = (
    "Forget-gate matrix F and attention matrix A (only where above 0.5) of two heads of FoX (Pro). Some heads forget fast, a "
    "narrow band along the diagonal; others keep F near 1 over long spans and can look far back."
)
CLAIMS = ()


def runs(scale, seeds):
    yield from recipes(scale, "fox_pro", seeds[:1])
