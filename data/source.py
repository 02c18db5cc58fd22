"""Sources of text or tokens, as `--data` names them.

A source of text has `kind` (`DataSpec.source`), `digest(file_digests)` (of the raw content, cheap) and `documents()`.
LongCrawl64 is already tokenised and is used in place."""

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from data.text_files import FileDigests, TextSource

PACKAGE, VERSION = "sympy", "1.14.0"
CONTENT = "b21159d7f8df0b653c8f650072ab51227522afce7c0f7f07889eff03a2111b87"
"""Digest of the text of that version; results on another text cannot equal the committed ones."""
FOLDERS = (
    "calculus categories combinatorics concrete core crypto diffgeom discrete geometry integrals logic ntheory series sets "
    "simplify solvers tensor utilities vector"
).split()
_LEFT_OUT = {"tests", "benchmarks"}
_DOCUMENT_CHARS = 64_000


class PackagesSource:
    """Default text: source code of a pinned pure-Python package, the same on every machine and every supported Python.

    The package is SymPy, which torch itself depends on and requirements.txt pins. The text is its least repetitive
    sub-packages, without tests, benchmarks and generated tables: modules in the order of their names, joined into documents
    of 64,000 characters or more."""

    kind = "packages"

    def __init__(self) -> None:
        try:
            distribution = importlib.metadata.distribution(PACKAGE)
        except importlib.metadata.PackageNotFoundError:
            remedy = f"install {VERSION}, or give --data text:PATH"
            raise ValueError(f"data 'packages': {PACKAGE} is not installed: {remedy}") from None
        self.version = distribution.version
        self.root = Path(str(distribution.locate_file(PACKAGE)))

    def digest(self, file_digests: FileDigests) -> str:
        return self._content

    @property
    def notice(self) -> str | None:
        """Warning if the text is not that of the pinned version."""
        found, expected = f"{self.version} (text {self._content[:8]})", f"{VERSION} (text {CONTENT[:8]})"
        remedy = f"numbers cannot equal committed ones; `pip install {PACKAGE}=={VERSION}` gives the expected text"
        wrong = f"data 'packages': found {PACKAGE} {found}, expected {expected}: {remedy}"
        return None if self._content == CONTENT else wrong

    def documents(self) -> Iterator[str]:
        for folder in FOLDERS:
            paths = [path.relative_to(self.root) for path in sorted((self.root / folder).rglob("*.py"))]
            wanted = [path for path in paths if not _LEFT_OUT & set(path.parts) and not path.stem.endswith("_generated")]
            texts = [(self.root / path).read_bytes().decode("utf-8") for path in wanted]
            while texts:
                document = [texts.pop(0)]
                # Modules left over in a sub-package that are too short for a document join its last one.
                while texts and min(sum(map(len, document)), sum(map(len, texts))) < _DOCUMENT_CHARS:
                    document.append(texts.pop(0))
                yield "\n".join(document)

    @cached_property
    def _content(self) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in self.documents())
        return hashlib.sha256(b"".join(digests)).hexdigest()


class HubSource:
    """A `datasets` name on the Hugging Face hub (its "train" split, `text` column), streamed in its own order."""

    def __init__(self, name: str, config: str | None, revision: str | None) -> None:
        self.name, self.config, self.revision = name, config, revision
        self.kind = f"hf:{name}"

    def digest(self, file_digests: FileDigests) -> str:
        """Return the digest of name, config and commit; the hub is needed unless the revision is a full commit."""
        return hashlib.sha256(json.dumps([self.name, self.config, self._commit()]).encode()).hexdigest()

    def documents(self) -> Iterator[str]:
        import kernels.hf_guard  # noqa: F401  # isort: skip  (before datasets)
        from datasets import load_dataset

        commit = self._commit()
        try:
            for row in load_dataset(self.name, self.config, revision=commit, split="train", streaming=True):
                if not isinstance(row.get("text"), str):
                    raise ValueError(f"data {self.kind!r} has no `text` column, only {', '.join(row)}: choose another")
                yield row["text"]
        except ValueError:
            raise
        except Exception as error:  # the hub client raises its own, its HTTP library's and the operating system's
            raise ValueError(f"data {self.kind!r}: reading from the hub failed ({first_line(error)}); run it again") from None

    def _commit(self) -> str:
        if self.revision is None or not re.fullmatch("[0-9a-f]{40}", self.revision):
            from huggingface_hub import HfApi

            try:
                self.revision = HfApi().dataset_info(self.name, revision=self.revision, timeout=20).sha
            except Exception as error:  # as above
                what = f"data {self.kind!r}: the hub is unreachable or has no such data set ({first_line(error)})"
                raise ValueError(f"{what}; check the name, go online, or pin a full commit as in hf:NAME@COMMIT") from None
        assert self.revision is not None
        return self.revision


class LongCrawl64Source:
    """A folder with LongCrawl64's train.zarr and heldout.zarr, used in place."""

    kind = "longcrawl64"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in (folder / "train.zarr", folder / "heldout.zarr"):
            if not part.is_dir():
                raise ValueError(f"data 'longcrawl64:{folder}': {part} does not exist: name a folder with both arrays")


TextualSource = TextSource | PackagesSource | HubSource
Source = TextualSource | LongCrawl64Source


def parse_source(text: str) -> Source:
    """Read the value of `--data`. ValueError names the value and what is allowed, also for missing or empty paths."""
    kind, _, rest = text.partition(":")
    if text == "packages":
        return PackagesSource()
    if kind == "text":
        return TextSource(rest)
    if kind == "longcrawl64" and rest:
        return LongCrawl64Source(Path(rest).expanduser())
    if match := re.fullmatch(r"hf:([\w.-]+(?:/[\w.-]+)?)(?::([\w.-]+))?(?:@([\w./-]+))?", text):
        return HubSource(*match.groups())
    allowed = "packages, text:PATH[,PATH...], longcrawl64:FOLDER or hf:NAME[:CONFIG][@REVISION]"
    raise ValueError(f"data {text!r} is none of {allowed}")


def first_line(error: Exception) -> str:
    """Return the first line of another library's error message, at most 200 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
