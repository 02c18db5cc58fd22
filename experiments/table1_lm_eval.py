"""Table 1: perplexities and short-context downstream tasks, zero-shot, all seven models."""

from eval.sources import digest
from eval.spec import EvalSpec, LmEvalSpec
from experiments.artefact import Artefact, Options
from experiments.scales import MODELS, Scale


def evals(scale: Scale, options: Options) -> tuple[EvalSpec, ...]:
    """The harness's own tasks; stand-ins made from the held-out text at tiny."""
    if scale.name == "tiny":
        return (LmEvalSpec(include="local", max_length=scale.document_len),)
    include = "harness" if options.sources.include_path is None else digest(options.sources.include_path)
    return (LmEvalSpec(include=include, max_length=scale.seq_len),)


ARTEFACT = Artefact(
    title="Short-context downstream tasks", paper="Table 1", models=MODELS, evals=evals, claims=("C17", "C18", "C19")
)
