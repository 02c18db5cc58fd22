"""Figure 3: forget-gate matrix F and attention matrix A of the most local and most global heads of FoX (Pro)."""

from eval.spec import EvalSpec, GateMapsSpec
from experiments.artefact import Artefact, Options
from experiments.scales import Scale


def evals(scale: Scale, options: Options) -> tuple[EvalSpec, ...]:
    """One training length of held-out text; F is compared 1,024 tokens back at the paper's length."""
    return (GateMapsSpec(seq_len=scale.seq_len, distance=scale.seq_len // 16),)


ARTEFACT = Artefact(
    title="Forget-gate matrix and attention matrix", paper="Figure 3", models=("fox_pro",), evals=evals, claims=()
)
