"""What a corpus is, without torch: the part of a data set that decides what a model sees."""

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from data.recall import RecallTask
from models.spec import STRICT, PositiveInt


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataSpec:
    """A tokenised corpus of equally long documents. Where it lies on disk is not part of it.

    `source`: "packages", "text", "longcrawl64" or "hf:NAME"; `tokenizer`: "gpt2-json", "gpt2", "bytes" or "bpe-N".
    `document_len`: tokens per stored document (65,536 in LongCrawl64). `fingerprint`: digest of the raw text, the
    tokeniser, the length and the split, so that equal fingerprints mean equal tokens in equal order. `recall`: the synthetic
    task that the documents are made by, where they are no text.
    """

    source: str
    tokenizer: str
    vocab_size: PositiveInt
    bos_id: int
    document_len: PositiveInt
    fingerprint: str
    recall: RecallTask | None = None

    @model_validator(mode="after")
    def _check(self) -> "DataSpec":
        if not 0 <= self.bos_id < self.vocab_size:
            raise ValueError(f"bos_id {self.bos_id} is outside the vocabulary of {self.vocab_size}")
        return self
