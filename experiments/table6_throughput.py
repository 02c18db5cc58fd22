"""Table 6: parameters, FLOPs and training throughput of all seven models, measured on the device that evaluates."""

from eval.spec import EvalSpec, ThroughputSpec
from experiments.artefact import Artefact, Options
from experiments.scales import MODELS, Scale


def evals(scale: Scale, options: Options) -> tuple[EvalSpec, ...]:
    """A training step on one sequence of the training length (four at tiny, where one is too little to time)."""
    return (ThroughputSpec(mode="train", seq_len=scale.seq_len, batch_size=4 if scale.name == "tiny" else 1),)


ARTEFACT = Artefact(title="Parameters, FLOPs and training throughput", paper="Table 6", models=MODELS, evals=evals, claims=())
