"""Appendix F.10: more forget-gate and attention matrices, of another document and of both blocks."""

from experiments.evaluations import more_gates as evals  # noqa: F401
from experiments.recipes import recipes

TITLE = "More forget gates and attention"
PAPER = "Appendix F.10"
SHOWS = (
    "F and A (only where above 0.5) of the four most local and four most global heads of FoX (Pro) and FoX (LLaMA), on another "
    "document than Figure 3. The paper's own captions could not be obtained."
)
CLAIMS = ()


def runs(scale, seeds):
    for model in ("fox_pro", "fox_llama"):
        yield from recipes(scale, model, seeds[:1])
