"""Plan of a corpus: its spec and fingerprint, its folder, and whether it exists already. Nothing is tokenised."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from data.corpus import Counts, longcrawl64_counts, longcrawl64_spec, read_about
from data.source import HubSource, LongCrawl64Source, PackagesSource, Source, TextualSource, parse_source
from data.spec import DataSpec
from data.text_files import FileDigests, TextSource
from data.tokenizer import TokenizerChoice, parse_tokenizer

FORMAT = 2  # version of the rules in data/prepare.py
PACK_FORMAT = 1  # version of those in data/pack.py
PACK_HELDOUT_FORMAT = 2  # version of the same with a separate held-out text
HUB_MAX_DOCUMENTS = 100_000

Progress = Callable[[str], None]


@dataclass(frozen=True)
class CorpusPlan:
    """Plan of a corpus in `folder`, prepared or not. `heldout`: the separate held-out text, if there is one; `packed`: rows are
    packed (data/pack.py), up to `max_tokens` train tokens; `digests`: `digests_of` the text when it was planned."""

    source: Source
    tokenizer: TokenizerChoice
    spec: DataSpec
    folder: Path
    heldout_fraction: float = 0.0
    heldout: TextSource | None = None
    max_documents: int | None = None
    packed: bool = False
    max_tokens: int | None = None
    digests: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """True if the corpus exists, so that `prepare` only opens it."""
        return isinstance(self.source, LongCrawl64Source) or self.counts() is not None

    @property
    def notice(self) -> str | None:
        """Warning if the installed default text is not the one that the committed results were made from."""
        return self.source.notice if isinstance(self.source, PackagesSource) else None

    def counts(self) -> Counts | None:
        """Return the counts, without decoding a token; None if the corpus is not prepared."""
        if isinstance(self.source, LongCrawl64Source):
            return longcrawl64_counts(self.folder)
        try:
            return read_about(self.folder).counts
        except ValueError:  # missing, or damaged: `prepare` makes it, or makes it again
            return None


def resolve(
    source: Source | str,
    *,
    cache_dir: Path,
    tokenizer: str | None = None,
    document_len: int | None = None,
    heldout_fraction: float = 0.05,
    heldout: str | None = None,
    max_documents: int | None = None,
    packed: bool = False,
    max_tokens: int | None = None,
) -> CorpusPlan:
    """Plan a corpus without tokenising anything.

    `tokenizer` defaults to bpe-1024 for packages and text, gpt2-json for hub names and LongCrawl64. `document_len` is
    required except for LongCrawl64, where it may shorten the stored documents. `heldout` (only with text:PATH) names files
    like text:PATH[,PATH...], all of whose documents are held out; without it `heldout_fraction` of the text is.
    `max_documents` limits the source to its first documents (hub names, unless packed: 100,000 by default). `packed`: short
    documents share rows (data/pack.py), up to `max_tokens` train tokens. ValueError for mistakes found before tokenising."""
    source = parse_source(source) if isinstance(source, str) else source
    if heldout is not None and not isinstance(source, TextSource):
        raise ValueError(f"held-out text {heldout!r}: only data text:PATH takes one, not {source.kind!r}; leave it out")
    if document_len is not None and document_len < 2:
        raise ValueError(f"document_len {document_len}: a document needs at least 2 tokens")
    if isinstance(source, LongCrawl64Source):
        if packed:
            raise ValueError("data 'longcrawl64' is tokenised already, and has no short documents to pack: name a text")
        choice = parse_tokenizer(tokenizer or "gpt2-json")
        if choice.kind != "gpt2-json":
            raise ValueError(f"tokenizer {tokenizer!r}: LongCrawl64 is tokenised already, with gpt2-json")
        return CorpusPlan(source, choice, longcrawl64_spec(source.folder, document_len), source.folder)
    if document_len is None:
        raise ValueError(f"data {source.kind!r} needs document_len, the tokens per stored document")
    if not 0 < heldout_fraction < 1:
        raise ValueError(f"heldout_fraction {heldout_fraction} must lie between 0 and 1")
    if max_documents is not None and max_documents < 2:
        raise ValueError(f"max_documents {max_documents}: at least 2 are needed, one of them held out")
    hub = isinstance(source, HubSource)
    max_documents = HUB_MAX_DOCUMENTS if max_documents is None and hub and not packed else max_documents
    choice = parse_tokenizer(tokenizer or ("gpt2-json" if hub else "bpe-1024"))
    heldout_text = None if heldout is None else TextSource(heldout)
    digests = digests_of(source, heldout_text, cache_dir)
    split = heldout_fraction if heldout_text is None else digests[1]
    identity = [FORMAT, digests[0], choice.digest(), document_len, split, max_documents]
    pack_format = PACK_FORMAT if heldout_text is None else PACK_HELDOUT_FORMAT
    identity += ["packed", pack_format, max_tokens] if packed else []
    fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    spec = choice.spec_of(source.kind, document_len, fingerprint)
    name = source.kind.replace(":", "-").replace("/", "-") + ("-packed" if packed else "")
    folder = cache_dir / f"{name}-{choice.kind}-{document_len}-{fingerprint}"
    return CorpusPlan(
        source, choice, spec, folder, heldout_fraction, heldout_text, max_documents, packed, max_tokens, digests
    )  # fmt: skip


def digests_of(source: TextualSource, heldout: TextSource | None, cache_dir: Path) -> tuple[str, ...]:
    """Return the digest of the source's text and, if there is a separate held-out text, the digest of that."""
    memory = FileDigests(cache_dir / "file-digests.json")
    return tuple(text.digest(memory) for text in (source, heldout) if text is not None)
