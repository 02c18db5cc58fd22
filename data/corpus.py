"""A tokenised corpus on disk: train.zarr and heldout.zarr, uint16 of shape (documents, document_len), as in LongCrawl64.

Ours carry their tokeniser beside the arrays and a corpus.json, which is sealed and holds a CRC-32 of every other file, checked
when the file is first read. LongCrawl64 itself, which has no digests, is read in place.
"""

import functools
import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from data.spec import DataSpec
from data.split import Split, open_array
from data.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, TokenizerChoice
from models.spec_parts import STRICT
from results.sealed import read_sealed, write_sealed

_FINGERPRINT_DOCUMENTS = 64
HELDOUT_SOURCES = "heldout-sources.json"
"""Number of the text that each held-out row was cut from: rows of one book are no independent draws."""


@dataclass(frozen=True, config=STRICT)
class Counts:
    """Counts of what became of the source's documents. `dropped_tokens`: rests that fill no row, short documents included."""

    documents: int
    train_documents: int
    heldout_documents: int
    train_rows: int
    heldout_rows: int
    duplicates: int = 0
    too_short: int = 0
    dropped_tokens: int = 0

    @property
    def summary(self) -> str:
        return (
            f"{self.documents} documents ({self.duplicates} duplicates, {self.too_short} too short) gave {self.train_rows} "
            f"train and {self.heldout_rows} held-out rows; {self.dropped_tokens} tokens left over"
        )


@dataclass(frozen=True)
class About:
    """Content of corpus.json; `files` is the CRC-32 of every other file of the folder by its path in it."""

    spec: DataSpec
    counts: Counts
    files: dict[str, int]


_ABOUT = TypeAdapter(About)


def write_about(folder: Path, spec: DataSpec, counts: Counts) -> None:
    """Write corpus.json, the last file of a corpus."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): zlib.crc32(path.read_bytes()) for path in paths}
    write_sealed(folder / "corpus.json", asdict(About(spec, counts, files)))


def read_about(folder: Path) -> About:
    """Read corpus.json. ValueError where it is missing, of another form or altered."""
    content = read_sealed(folder / "corpus.json", _remedy(folder))
    try:
        return _ABOUT.validate_json(json.dumps(content))
    except ValidationError:
        raise ValueError(f"{folder / 'corpus.json'} is of another version: {_remedy(folder)}") from None


def _remedy(folder: Path) -> str:
    return f"delete {folder}, it is made again when it is next needed"


def _checker(folder: Path, files: dict[str, int]) -> Callable[[Path], None]:
    """Make a check of a prepared corpus's files against their CRC-32, once each; ValueError: missing or altered."""

    @functools.cache
    def check(path: Path) -> None:
        try:
            crc = zlib.crc32(path.read_bytes())
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}): {_remedy(folder)}") from None
        if crc != files.get(path.relative_to(folder).as_posix()):
            raise ValueError(f"{path} was altered since the corpus was made (its CRC-32 differs): {_remedy(folder)}")

    return check


class Corpus:
    """Corpus with its `train` and `heldout` splits and its `spec`; `counts` is None for LongCrawl64."""

    def __init__(
        self, folder: Path, spec: DataSpec, about: About | None = None, tokenizer: TokenizerChoice | None = None
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.counts = None if about is None else about.counts
        self._about = about
        self._tokenizer = tokenizer
        self._check = None if about is None else _checker(folder, about.files)
        size = {"vocab_size": spec.vocab_size, "document_len": spec.document_len}
        self.train = Split(folder / "train.zarr", **size, check=self._check)
        self.heldout = Split(folder / "heldout.zarr", **size, check=self._check)

    @staticmethod
    def open(folder: Path, *, document_len: int | None = None, tokenizer: TokenizerChoice | None = None) -> "Corpus":
        """Open a prepared corpus or a LongCrawl64 folder, using only the first `document_len` tokens of its documents.

        `tokenizer` says where LongCrawl64's vocabulary lies, for those who need text; ours lies in the folder.
        """
        if (folder / "corpus.json").exists():
            about = read_about(folder)
            return Corpus(folder, about.spec, about)
        return Corpus(folder, longcrawl64_spec(folder, document_len), tokenizer=tokenizer or TokenizerChoice("gpt2-json"))

    @cached_property
    def heldout_sources(self) -> list[int] | None:
        """Number of the text that each held-out row is from; None where that was not kept: LongCrawl64, packed rows."""
        if self._about is None or self._check is None or HELDOUT_SOURCES not in self._about.files:
            return None
        self._check(self.folder / HELDOUT_SOURCES)
        return list(json.loads((self.folder / HELDOUT_SOURCES).read_text()))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokeniser of the corpus. ValueError where GPT-2's vocabulary is needed and not found."""
        if self._tokenizer is not None:
            return self._tokenizer.load()
        assert self._about is not None and self._check is not None
        for name in self._about.files:
            if name.startswith("tokenizer/"):
                self._check(self.folder / name)
        return Tokenizer.load(self.folder / "tokenizer")


def longcrawl64_spec(folder: Path, document_len: int | None = None) -> DataSpec:
    """Return the spec of a LongCrawl64 folder, with a fingerprint of the shapes and the first documents, not of 800 GB."""
    digest = hashlib.sha256(b"longcrawl64")
    lengths = []
    for name in ("train.zarr", "heldout.zarr"):
        split = Split(folder / name, vocab_size=GPT2_VOCAB_SIZE, document_len=document_len)
        digest.update(json.dumps([name, split.shape]).encode())
        digest.update(split.read(slice(0, _FINGERPRINT_DOCUMENTS), 0, min(split.document_len, 2048)).tobytes())
        lengths.append(split.document_len)
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{folder}: train.zarr has documents of {lengths[0]} tokens and heldout.zarr of {lengths[1]}: "
            "give the shorter as document_len"
        )
    return DataSpec(
        source="longcrawl64",
        tokenizer="gpt2-json",
        vocab_size=GPT2_VOCAB_SIZE,
        bos_id=GPT2_VOCAB_SIZE - 1,
        document_len=lengths[0],
        fingerprint=digest.hexdigest()[:16],
    )


def longcrawl64_counts(folder: Path) -> Counts:
    """Count the rows of a LongCrawl64 folder, from the shapes of its arrays: a row is a document there."""
    train, heldout = (int(open_array(folder / name).shape[0]) for name in ("train.zarr", "heldout.zarr"))
    return Counts(train + heldout, train, heldout, train_rows=train, heldout_rows=heldout)
