"""Spec of a corpus: the part of a data set that decides what a model sees. Torch-free."""

import hashlib
import json

from data.recall import FORMAT, RecallTask
from models.spec_parts import PositiveInt, strict


@strict
class DataSpec:
    """A tokenised corpus of equally long documents, whatever its path.

    `source`: "packages", "text", "longcrawl64" or "hf:NAME"; `tokenizer`: "gpt2-json", "gpt2", "bytes" or "bpe-N".
    `document_len`: tokens per stored document (65,536 in LongCrawl64). `fingerprint`: digest of the raw text, the
    tokeniser, the length and the split, so that equal fingerprints mean equal tokens in equal order. `recall`: the synthetic
    task that generates the documents, if they are not text."""

    source: str
    tokenizer: str
    vocab_size: PositiveInt
    bos_id: int
    document_len: PositiveInt
    fingerprint: str
    recall: RecallTask | None = None

    @classmethod
    def of_recall(cls, task: RecallTask) -> "DataSpec":
        """Return the spec of a recall task as training data."""
        identity = ["recall", FORMAT, task.num_keys, task.num_assignments, task.num_queries, task.num_symbols]
        identity += ["pairs_first"] if task.pairs_first else []
        return cls(
            source="recall",
            tokenizer="symbols",
            vocab_size=task.blank + 1,
            bos_id=task.blank,
            document_len=task.seq_len,
            fingerprint=hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16],
            recall=task,
        )

    def __post_init__(self) -> None:
        if not 0 <= self.bos_id < self.vocab_size:
            raise ValueError(f"bos_id {self.bos_id} is outside the vocabulary of {self.vocab_size}")
