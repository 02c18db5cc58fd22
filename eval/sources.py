"""Where texts, data sets and the judge of an evaluation come from: command-line options, checked against the spec."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from eval.spec import EvalSpec, LmEvalSpec, LongBenchSpec, NeedleSpec

if TYPE_CHECKING:
    from eval.context import Context

TEXT_SUFFIXES = (".txt", ".md", ".text")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Options that say where things are. A spec names texts and data by digest, so paths never change an evaluation's id."""

    corpus: Path | None = None
    """Folder of a prepared corpus (held-out text)."""
    tokenizer: str | None = None
    """Folder or hub name of a tokeniser, for models that come without one."""
    batch_tokens: int | None = None
    """Tokens (padding and new ones included) that one generation batch may hold."""
    haystack: Path | None = None
    """Folder of texts to hide needles in; default: the held-out text of the corpus."""
    haystack_unsorted: bool = False
    """Take the texts of --haystack in directory order, as the released evaluation did."""
    prompts: Path | None = None
    """TOML file with the wording of the needle test (a copy of eval/needle_prompts.toml, edited)."""
    longbench: Path | None = None
    """Folder with LongBench data (TASK.jsonl), for machines without internet."""
    include_path: Path | None = None
    """Folder with lm-eval task files (YAML) and their data."""
    local_tasks: Path | None = None
    """Where stand-in tasks made from the held-out text are kept; default: in the corpus folder."""
    judge_url: str | None = None
    """Base URL of an OpenAI-compatible endpoint that scores answers."""
    judge_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key of that endpoint."""
    judge_cache: Path | None = None
    """Folder of judged answers; default: judge_cache/ beside the results."""


def digest(path: Path) -> str:
    """First 12 hex digits of the SHA-256 over names and contents of a file, or of all files below a folder.

    Raises ValueError for a path that does not exist or holds no file."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    files = sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    if not files:
        raise ValueError(f"{path}: there is no such file or folder, or it is empty")
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
        whole.update(file.read_bytes())
    return whole.hexdigest()[:12]


def haystack_digest(sources: Sources) -> str:
    assert sources.haystack is not None
    return digest(sources.haystack) + ("-unsorted" if sources.haystack_unsorted else "")


def named_by_content(spec: EvalSpec, sources: Sources) -> EvalSpec:
    """The spec with the digests of what `sources` bring in, for evaluations started by hand."""
    match spec:
        case NeedleSpec():
            if sources.haystack is not None and spec.text == "heldout":
                spec = replace(spec, text=haystack_digest(sources))
            if sources.prompts is not None and spec.wording == "default":
                spec = replace(spec, wording=digest(sources.prompts))
        case LongBenchSpec():
            if sources.longbench is not None and spec.dataset == "hub":
                spec = replace(spec, dataset=digest(sources.longbench))
        case LmEvalSpec():
            if sources.include_path is not None and spec.include == "harness":
                spec = replace(spec, include=digest(sources.include_path))
    return spec


def needs_hub(spec: EvalSpec) -> bool:
    """Whether data of the hub are read."""
    return (isinstance(spec, LongBenchSpec) and spec.dataset == "hub") or (
        isinstance(spec, LmEvalSpec) and spec.include == "harness"
    )


def make_context(spec: EvalSpec, sources: Sources, device: str, out_folder: Path) -> "Context":
    """Open what the spec needs. Raises ValueError where a source is missing or is not the one that the spec names."""
    from eval.context import Context

    context = Context(device=device, batch_tokens=sources.batch_tokens)
    if sources.corpus is not None:
        from data.corpus import Corpus

        context.corpus = Corpus.open(sources.corpus)
    match spec:
        case NeedleSpec():
            _needle(spec, sources, context, out_folder)
        case LongBenchSpec():
            if spec.dataset == "local":
                context.local_tasks = _local_tasks(sources, context)
            elif spec.dataset != "hub":
                context.longbench = _checked("dataset", spec.dataset, sources.longbench, "--longbench")
        case LmEvalSpec():
            if spec.include == "local":
                context.local_tasks = _local_tasks(sources, context)
            elif spec.include != "harness":
                context.include_path = _checked("include", spec.include, sources.include_path, "--include-path")
    return context


def _needle(spec: NeedleSpec, sources: Sources, context: "Context", out_folder: Path) -> None:
    if spec.text != "heldout":
        context.haystack_sorted = not spec.text.endswith("-unsorted")
        wanted = spec.text.removesuffix("-unsorted")
        context.haystack = _checked("text", wanted, sources.haystack, "--haystack")
    if spec.wording != "default":
        context.prompts = _checked("wording", spec.wording, sources.prompts, "--prompts")
    if spec.judge is not None:
        from eval.judge import JudgeSettings

        if sources.judge_url is None:
            raise ValueError(f"judge {spec.judge!r} needs the address of its endpoint: --judge-url")
        key = os.environ.get(sources.judge_key_env)
        if not key:
            raise ValueError(f"judge {spec.judge!r} needs a key in the environment variable {sources.judge_key_env}")
        cache = sources.judge_cache or out_folder / "judge_cache"
        context.judge = JudgeSettings(url=sources.judge_url, key=key, cache=cache)


def _checked(what: str, wanted: str, path: Path | None, flag: str) -> Path:
    if path is None:
        raise ValueError(f"the spec's {what} is the content {wanted}: name its path with {flag}")
    found = digest(path)
    if found != wanted:
        raise ValueError(f"{path} has the content {found}, the spec asks for {what} {wanted}")
    return path


def _local_tasks(sources: Sources, context: "Context") -> Path:
    from eval.local_tasks import write_local_tasks

    corpus = context.need_corpus()
    parent = sources.local_tasks or (sources.corpus / "local_tasks" if sources.corpus else None)
    assert parent is not None
    return write_local_tasks(corpus, parent)
