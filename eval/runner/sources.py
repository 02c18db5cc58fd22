"""Paths of texts and data sets and the judge's address: command-line options, checked against the spec. Torch-free."""

import functools
import hashlib
import re
from dataclasses import fields
from pathlib import Path

from data.spec import DataSpec
from data.text_files import files_below
from models.spec_parts import PositiveInt, strict


@strict
class UserData:
    """User's own texts, data sets and judge. A spec names them by content, so paths never change an evaluation's id."""

    haystack: Path | None = None
    """Folder of texts for the needle test and RULER; default: the held-out text of the corpus."""
    prompts: Path | None = None
    """TOML file with the wording of the needle test (a copy of eval/needle/prompts.toml, edited)."""
    longbench: Path | None = None
    """Folder with LongBench data (TASK.jsonl), for machines without internet; default: the hub."""
    include_path: Path | None = None
    """Folder with lm-eval task files (YAML) and their data (paths relative to it); default: the hub. Their Python is run."""
    judge_url: str | None = None
    """Base URL of an OpenAI-compatible endpoint that scores needle answers; default: by match."""

    def given(self) -> list[str]:
        """Return the names of the options that were given, each of which some evaluation should read."""
        return [field.name for field in fields(UserData) if getattr(self, field.name) is not None]


@strict
class Sources(UserData):
    """Inputs of one evaluation process: the user's data, the corpus, and how they are processed."""

    corpus: Path | None = None
    """Folder of a prepared corpus (held-out text)."""
    tokenizer: str | None = None
    """Tokeniser of a model that comes without one (folder or hub name); gpt2-json:FOLDER also reads the text of LongCrawl64."""
    batch_tokens: PositiveInt | None = None
    """Tokens (padding and new ones included) that one batch of prompts may hold."""
    judge_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key of the judge's endpoint."""
    judge_cache: Path | None = None
    """Folder of judged answers; default: judge_cache/ beside the results."""


def digest(path: Path) -> str:
    """Return the first 12 hex digits of the SHA-256 over a file's contents, or over names and contents of all files below a
    folder. ValueError for a path that does not exist or holds no file."""
    below = [path] if path.is_file() else files_below(path)
    files = [file for file in below if file == path or "__pycache__" not in file.parts]
    if not files:
        raise ValueError(f"{path}: there is no such file or folder, or it is empty")
    return _digest(path, tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))


@functools.lru_cache(maxsize=64)
def _digest(path: Path, files: tuple[tuple[Path, int, int], ...]) -> str:
    """Digest files, cached: a plan asks for the same folder once per run."""
    if files[0][0] == path:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    whole = hashlib.sha256()
    for file, size, _ in files:
        whole.update(f"{file.relative_to(path)}\0{size}\0".encode() + file.read_bytes())
    return whole.hexdigest()[:12]


def fingerprint(corpus: DataSpec | None) -> str:
    """Return the fingerprint of the corpus whose held-out text is read. ValueError if there is none."""
    if corpus is None:
        raise ValueError("this evaluation reads held-out text: name the folder of a prepared corpus with --corpus")
    return corpus.fingerprint


def check_choice(option: str, value: str, *choices: str) -> None:
    """Raise ValueError unless an option has one of its choices, or what `bound` makes of them: content by its digest."""
    if value not in choices and not re.fullmatch(r"local[-:].+|heldout:.+|[0-9a-f]+", value):
        raise ValueError(f"{option} {value}: choose {' or '.join(choices)}")


def checked(what: str, wanted: str, path: Path | None, flag: str) -> Path:
    """Return `path`. ValueError unless its content is the one that the spec names."""
    if path is None:
        raise ValueError(f"the spec's {what} is the content {wanted}: name its path with {flag}")
    found = digest(path)
    if found != wanted:
        raise ValueError(f"{path} has the content {found}, the spec asks for {what} {wanted}: name that with {flag}")
    return path
