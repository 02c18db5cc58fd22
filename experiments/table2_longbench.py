"""Table 2: the 14 English tasks of LongBench, all seven models."""

from eval.sources import digest
from eval.spec import EvalSpec, LongBenchSpec
from experiments.artefact import Artefact, Options
from experiments.scales import MODELS, Scale

PAPER_SEQ_LEN = 16384
PAPER_PROMPT_TOKENS = 15500


def evals(scale: Scale, options: Options) -> tuple[EvalSpec, ...]:
    """Prompts cut to the paper's share of the training length; stand-ins made from the held-out text at tiny."""
    max_prompt_tokens = PAPER_PROMPT_TOKENS * scale.seq_len // PAPER_SEQ_LEN
    if scale.name == "tiny":
        return (LongBenchSpec(dataset="local", max_prompt_tokens=max_prompt_tokens, max_new_tokens=12),)
    dataset = "hub" if options.sources.longbench is None else digest(options.sources.longbench)
    return (LongBenchSpec(dataset=dataset, max_prompt_tokens=max_prompt_tokens),)


ARTEFACT = Artefact(title="LongBench", paper="Table 2", models=MODELS, evals=evals, claims=("C21", "C22"))
