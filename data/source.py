"""Sources of text or tokens, as `--data` names them.

A source of text has `kind` (`DataSpec.source`), `digest(file_digests)` (of the raw content, cheap) and `documents()`.
LongCrawl64 is tokens already and is used in place.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from data.file_digests import FileDigests
from data.packages import PackagesSource
from data.text_files import TextSource

_REVISION = re.compile(r"[0-9a-f]{40}")

_ALLOWED = "packages, text:PATH[,PATH...], longcrawl64:FOLDER or hf:NAME[:CONFIG][@REVISION]"


class HubSource:
    """A `datasets` name on the Hugging Face hub (its "train" split, `text` column), streamed in its own order."""

    def __init__(self, name: str, config: str | None, revision: str | None) -> None:
        self.name, self.config, self.revision = name, config, revision
        self.kind = f"hf:{name}"

    def digest(self, file_digests: FileDigests) -> str:
        """Return the digest of the name, the configuration and the commit, which together fix the content.

        The hub is needed unless the revision is a full commit.
        """
        return hashlib.sha256(json.dumps([self.name, self.config, self._commit()]).encode()).hexdigest()

    def documents(self) -> Iterator[str]:
        import kernels.hf_guard  # noqa: F401  # isort: skip  (before datasets)
        from datasets import load_dataset

        commit = self._commit()
        try:
            rows = load_dataset(self.name, self.config, revision=commit, split="train", streaming=True)
            for row in rows:
                if not isinstance(row.get("text"), str):
                    raise ValueError(f"data {self.kind!r} has no `text` column, only {', '.join(row)}: choose another")
                yield row["text"]
        except ValueError:
            raise
        except Exception as error:  # the hub client raises its own, its HTTP library's and the operating system's
            raise ValueError(f"data {self.kind!r}: reading from the hub failed ({first_line(error)}); run it again") from None

    def _commit(self) -> str:
        if self.revision is not None and _REVISION.fullmatch(self.revision):
            return self.revision
        from huggingface_hub import HfApi

        try:
            commit = HfApi().dataset_info(self.name, revision=self.revision, timeout=20).sha
        except Exception as error:  # the hub client raises its own, its HTTP library's and the operating system's
            raise ValueError(
                f"data {self.kind!r}: the hub does not answer or does not know it ({first_line(error)}); check the name, go "
                "online, or pin a full commit as in hf:NAME@COMMIT"
            ) from None
        assert commit is not None
        self.revision = commit
        return commit


class LongCrawl64Source:
    """A folder with LongCrawl64's train.zarr and heldout.zarr, used in place."""

    kind = "longcrawl64"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("train.zarr", "heldout.zarr"):
            if not (folder / name).is_dir():
                raise ValueError(
                    f"data 'longcrawl64:{folder}': {folder / name} does not exist; "
                    "the folder must hold train.zarr and heldout.zarr"
                )


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
    if kind == "hf":
        match = re.fullmatch(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?", rest)
        if match:
            return HubSource(match["name"], match["config"], match["revision"])
    raise ValueError(f"data {text!r} is none of {_ALLOWED}")


def first_line(error: Exception) -> str:
    """Shorten what an error of another library says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
