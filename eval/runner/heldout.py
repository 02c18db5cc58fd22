"""Base of evaluations that read tokens of the first held-out documents. Torch-free."""

import math
from typing import ClassVar

from data.corpus import Corpus, Counts
from eval.runner.context import Context
from eval.runner.loading import Loaded
from eval.runner.spec import Content, EvalSpec, PrecisionOption
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.spec_parts import strict
from training.spec import RunSpec


@strict
class HeldoutSpec(EvalSpec):
    """Spec of an evaluation of held-out documents; `extent` says how much of the held-out split it needs."""

    corpus: Content = None
    """Fingerprint of the corpus."""
    precision: PrecisionOption = None

    GATED: ClassVar[bool] = False
    """True if the model must have forget gates."""

    @property
    def extent(self) -> tuple[int, int]:
        """Number of documents, and tokens of each."""
        raise NotImplementedError

    def reads(self) -> tuple[str, ...]:
        return ("corpus",)

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        there = None if counts is None else counts.heldout_rows
        times = math.ceil(10 * self.extent[0] / (there or 1)) / 10
        remedy = f"give about {times:g} times as much text (--data, of which a share is held out)"
        self.check_extent(there, run.data.document_len, f"{remedy}, or hold out files with as many (--heldout PATH)")
        if self.GATED and not (isinstance(run.model, ForgettingTransformerSpec) and run.model.forget_gate != "none"):
            raise ValueError(f"{run.name} has no forget gates: choose a FoX, such as fox_pro")

    def check_extent(
        self, there: int | None, document_len: int, remedy: str = "ask for fewer, or name a corpus that holds out more"
    ) -> None:
        """Raise ValueError if the held-out split has too few documents (`there`; None: not known) or too short ones."""
        documents, length = self.extent
        if there is not None and documents > there:
            what = f"{documents} documents exceed the {there} held-out documents of the corpus (of {document_len} tokens)"
            raise ValueError(f"{what}: {remedy}")
        if length > document_len:
            raise ValueError(f"{length} tokens exceed the {document_len} tokens of the corpus's documents: ask for fewer")


def open_heldout(spec: HeldoutSpec, loaded: Loaded, context: Context) -> Corpus:
    """Open the corpus of a spec, and name the sources of its documents (indices of source texts, if the corpus stores them) in
    `context.extras`. ValueError if it is another one, is too small, or its token ids are not the model's."""
    corpus = context.heldout(spec.corpus)
    spec.check_extent(*corpus.heldout.shape)
    loaded.check_token_ids(corpus)
    if corpus.heldout_sources is not None:
        context.extras["sources"] = corpus.heldout_sources[: spec.extent[0]]
    return corpus
