"""Context of an evaluation besides model and spec: paths of texts and data, the device, and samples already finished."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.corpus import Corpus
from data.spec import DataSpec
from data.tokenizer import parse_tokenizer
from eval.runner.partial import Partial
from eval.runner.sources import Sources, fingerprint
from eval.runner.spec import Precision


@dataclass(frozen=True)
class Compute:
    """Device and precision with which a model runs; weights are fp32, "bf16" is autocast (as in the paper's evaluations)."""

    device: str = "cpu"
    precision: Precision = "fp32"

    @property
    def on_cuda(self) -> bool:
        return self.device.startswith("cuda")

    @contextmanager
    def inference(self) -> Iterator[None]:
        import torch

        device = torch.device(self.device).type
        with torch.inference_mode(), torch.autocast(device, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            yield


@dataclass
class Context:
    """Context of an evaluation. Nothing here changes the rows of a given spec: what is read is checked against the digests in
    the spec. `folder`: of the results; `partial`: samples already finished; `extras`: facts for the meta file, which the
    evaluation adds."""

    device: str = "cpu"
    sources: Sources = field(default_factory=Sources)
    corpus: Corpus | None = None
    folder: Path = Path()
    partial: Partial = field(default_factory=lambda: Partial(None, identity=""))
    extras: dict[str, Any] = field(default_factory=dict)

    def compute(self, precision: Precision | None) -> Compute:
        assert precision is not None, "an unbound spec"
        return Compute(self.device, precision)

    def heldout(self, wanted: str | None) -> Corpus:
        """Return the corpus. ValueError if none was given, or its fingerprint is not the one that the spec names."""
        found = fingerprint(None if self.corpus is None else self.corpus.spec)
        assert self.corpus is not None
        if found != wanted:
            where = f"{self.corpus.folder} holds {found}: name the right one with --corpus"
            raise ValueError(f"the evaluation is of corpus {wanted}, but {where}")
        return self.corpus


def make_context(sources: Sources, device: str, folder: Path, trained_on: DataSpec | None = None) -> Context:
    """Make a context and open its corpus. `trained_on`: LongCrawl64's documents are cut to the length that the run had."""
    context = Context(device=device, sources=sources, folder=folder)
    if sources.corpus is not None:
        named = sources.tokenizer
        choice = parse_tokenizer(named) if named is not None and named.startswith("gpt2-json:") else None
        length = None if trained_on is None else trained_on.document_len
        context.corpus = Corpus.open(sources.corpus, document_len=length, tokenizer=choice)
    return context
