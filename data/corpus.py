"""A tokenised corpus on disk: train.zarr and heldout.zarr, uint16 of shape (documents, document_len), as in LongCrawl64.

Corpora made by this suite also hold their tokeniser and a corpus.json with the CRC-32 of every other file, by which a
file is checked when it is first read."""

import functools
import hashlib
import json
import zlib
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from data.spec import DataSpec
from data.split import DamagedTokens, Split, open_array
from data.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, TokenizerChoice
from models.spec_parts import strict
from results.atomic import write_atomic

_FINGERPRINT_DOCUMENTS = 64
HELDOUT_SOURCES = "heldout-sources.json"
"""File with the index of the document that each held-out row was cut from: rows of one book are not independent samples."""


@strict
class Counts:
    """Counts of the source's documents and of their rows. `dropped_tokens`: tokens left over, short documents' included."""

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
    """Content of corpus.json; `files` maps the relative path of every other file in the folder to its CRC-32."""

    spec: DataSpec
    counts: Counts
    files: dict[str, int]


_ABOUT = TypeAdapter(About)


def write_about(folder: Path, spec: DataSpec, counts: Counts) -> None:
    """Write corpus.json, the last file of a corpus."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): zlib.crc32(path.read_bytes()) for path in paths}
    text = json.dumps(asdict(About(spec, counts, files)))
    write_atomic(folder / "corpus.json", f"{text}\n{zlib.crc32(text.encode())}\n")


def read_about(folder: Path) -> About:
    """Read corpus.json. ValueError if it is missing, damaged or of another version."""
    try:
        text, crc = (folder / "corpus.json").read_bytes().splitlines()
        if zlib.crc32(text) != int(crc):
            raise ValueError("changed after it was written")
        return _ABOUT.validate_json(text)
    except (OSError, ValueError):  # pydantic's errors are ValueErrors, too
        raise ValueError(f"{folder / 'corpus.json'} is missing, damaged or of another version: {_remedy(folder)}") from None


def _remedy(folder: Path) -> str:
    return f"delete {folder}; it is made again when it is next needed"


class Corpus:
    """Corpus with its `train` and `heldout` splits and its `spec`; `counts` is None for LongCrawl64."""

    def __init__(
        self, folder: Path, spec: DataSpec, about: About | None = None, tokenizer: TokenizerChoice | None = None
    ) -> None:
        self.folder, self.spec, self._tokenizer = folder, spec, tokenizer
        self.counts = None if about is None else about.counts
        self._files = {} if about is None else about.files
        self._check = functools.cache(self._check_file)
        size = {"vocab_size": spec.vocab_size, "document_len": spec.document_len}
        self.train, self.heldout = (
            Split(folder / f"{name}.zarr", **size, check=self._check if self._files else None) for name in ("train", "heldout")
        )

    def _check_file(self, path: Path) -> None:
        """Raise DamagedTokens for a file that is missing, or was altered."""
        try:
            crc = zlib.crc32(path.read_bytes())
        except OSError as error:
            raise DamagedTokens(f"{path} cannot be read ({error.strerror}): {_remedy(self.folder)}") from None
        if crc != self._files.get(path.relative_to(self.folder).as_posix()):
            raise DamagedTokens(f"{path} was altered since the corpus was made (its CRC-32 differs): {_remedy(self.folder)}")

    @staticmethod
    def open(folder: Path, *, document_len: int | None = None, tokenizer: TokenizerChoice | None = None) -> "Corpus":
        """Open a prepared corpus; or LongCrawl64, its documents cut to `document_len` tokens and read with `tokenizer`."""
        if (folder / "corpus.json").exists():
            about = read_about(folder)
            return Corpus(folder, about.spec, about)
        return Corpus(folder, longcrawl64_spec(folder, document_len), tokenizer=tokenizer or TokenizerChoice("gpt2-json"))

    @cached_property
    def heldout_sources(self) -> list[int] | None:
        """Index of the document that each held-out row is from; None if it was not stored (LongCrawl64, packed rows)."""
        if HELDOUT_SOURCES not in self._files:
            return None
        self._check(self.folder / HELDOUT_SOURCES)
        return list(json.loads((self.folder / HELDOUT_SOURCES).read_text()))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokeniser of the corpus. ValueError if GPT-2's vocabulary is needed and not found."""
        if self._tokenizer is not None:
            return self._tokenizer.load()
        for name in self._files:
            if name.startswith("tokenizer/"):
                self._check(self.folder / name)
        return Tokenizer.load(self.folder / "tokenizer")


def longcrawl64_spec(folder: Path, document_len: int | None = None) -> DataSpec:
    """Return the spec of a LongCrawl64 folder. Its fingerprint covers the shapes and the first documents, not all 800 GB."""
    digest = hashlib.sha256(b"longcrawl64")
    lengths = []
    for name in ("train.zarr", "heldout.zarr"):
        split = Split(folder / name, vocab_size=GPT2_VOCAB_SIZE, document_len=document_len)
        digest.update(json.dumps([name, split.shape]).encode())
        digest.update(split.read(slice(0, _FINGERPRINT_DOCUMENTS), 0, min(split.document_len, 2048)).tobytes())
        lengths.append(split.document_len)
    if lengths[0] != lengths[1]:
        raise ValueError(f"{folder}: documents of {' and '.join(map(str, lengths))} tokens: give the shorter as document_len")
    return TokenizerChoice("gpt2-json").spec_of("longcrawl64", lengths[0], digest.hexdigest()[:16])


def longcrawl64_counts(folder: Path) -> Counts:
    """Count the rows of a LongCrawl64 folder, from the shapes of its arrays: a row is a document there."""
    train, heldout = (int(open_array(folder / name).shape[0]) for name in ("train.zarr", "heldout.zarr"))
    rows = {"train_rows": train, "heldout_rows": heldout}
    return Counts(documents=train + heldout, train_documents=train, heldout_documents=heldout, **rows)
