"""Figure 4: needle in a haystack, easy and standard mode, all seven models, up to twice the training length."""

from dataclasses import replace

from eval.sources import digest, haystack_digest
from eval.spec import PAPER_NEEDLE_LENGTHS, EvalSpec, NeedleSpec
from experiments.artefact import Artefact, Options
from experiments.scales import MODELS, Scale

PAPER_SEQ_LEN = 16384


def evals(scale: Scale, options: Options) -> tuple[EvalSpec, ...]:
    """The paper's 11 x 11 grid, its lengths in proportion to the training length; a coarse one on short texts at tiny."""
    sources = options.sources
    text = "heldout" if sources.haystack is None else haystack_digest(sources)
    wording = "default" if sources.prompts is None else digest(sources.prompts)
    if scale.name == "tiny":
        grid = NeedleSpec(
            lengths=(192, 320, 448, 576, 704),
            depths=(0.0, 25.0, 50.0, 75.0, 100.0),
            reserve=64,
            max_new_tokens=24,
            text=text,
            wording=wording,
        )
        return _both_modes(grid)
    lengths = tuple(round(length * scale.seq_len / PAPER_SEQ_LEN) for length in PAPER_NEEDLE_LENGTHS)
    return _both_modes(NeedleSpec(lengths=lengths, text=text, wording=wording, judge=options.judge_model))


def _both_modes(spec: NeedleSpec) -> tuple[EvalSpec, ...]:
    return replace(spec, mode="easy"), replace(spec, mode="standard")


ARTEFACT = Artefact(title="Needle in a haystack", paper="Figure 4", models=MODELS, evals=evals, claims=("C22b", "C22c"))
