"""Preparation of a planned corpus from its text. A corpus that exists already is only opened.

Rules, all part of the fingerprint through FORMAT:
* Documents with equal text count once.
* Whole documents are held out: those of the separate held-out text if there is one, else as many as fit into a fraction of the
  text, at least one, in the order of their texts' digests (file names and order do not matter). Candidates have at least 8
  bytes per token of a row, so that each is long enough for a row.
* A document is cut into consecutive rows of exactly `document_len` tokens; tokens left over are dropped. Rows never mix
  documents.
* Rows of all documents are interleaved: row j of the n rows of document d of D is placed at (j + (d + 0.5) / D) / n.
  Documents of one row keep the source's order; longer ones are spread evenly over the corpus, so that no book fills a batch.
* A BPE is trained on the train documents alone."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from data.corpus import HELDOUT_SOURCES, Corpus, Counts
from data.pack import batches_of, build_packed, create_array, finish, tokenizer_of
from data.plan import CorpusPlan, Progress, digests_of
from data.prefetch import Prefetcher
from data.source import HubSource, LongCrawl64Source, TextualSource
from data.text_files import read_documents
from data.tokenizer import Tokenizer
from results.atomic import alone

_BYTES_PER_TOKEN = 8


def prepare(plan: CorpusPlan, *, progress: Progress | None = None, say: Progress | None = None) -> Corpus:
    """Open the corpus of `plan`, and tokenise it first unless it exists: in a temporary folder that is renamed when complete,
    while a second process that needs the same corpus waits. ValueError for unreadable text, text that has changed since it was
    planned, documents that are all too short, and a full or unwritable disk. `progress` receives messages of passing interest;
    `say` those worth keeping in a log."""
    if isinstance(plan.source, LongCrawl64Source):
        return Corpus.open(plan.folder, document_len=plan.spec.document_len, tokenizer=plan.tokenizer)
    report = progress or (lambda message: None)
    say = say or report
    if (corpus := _prepared(plan)) is not None:
        return corpus
    if (plan.folder / "corpus.json").exists():
        say(f"{plan.folder} is damaged, or of another version: making it again")
    temporary = plan.folder.with_name(f".{plan.folder.name}.partial")
    try:
        plan.folder.parent.mkdir(parents=True, exist_ok=True)
        waits = partial(say, "another process is preparing this corpus: waiting for it")
        with alone(plan.folder.with_name(f".{plan.folder.name}.lock"), waits):
            if _prepared(plan) is None:
                for left in (temporary, plan.folder):  # from a killed process, or damaged: we hold the lock
                    shutil.rmtree(left, ignore_errors=True)
                temporary.mkdir()
                try:
                    # On all cores, even if a command has disabled this because its prompts are short.
                    with patch.dict(os.environ, TOKENIZERS_PARALLELISM="true"):
                        _build(plan, plan.source, temporary, report)
                    if digests_of(plan.source, plan.heldout, plan.folder.parent) != plan.digests:
                        raise _changed(plan)
                    os.replace(temporary, plan.folder)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            wrong = f"no space left in {plan.folder.parent} for the tokenised corpus"
        else:
            wrong = f"cannot write the tokenised corpus to {plan.folder}"
        raise ValueError(f"{wrong} ({error.strerror or error}): make room, or choose another --corpora-dir") from None
    return Corpus.open(plan.folder)


def _prepared(plan: CorpusPlan) -> Corpus | None:
    """Open the corpus if it has been prepared, perhaps by another process."""
    try:
        corpus = Corpus.open(plan.folder)
    except ValueError:
        return None
    return corpus if corpus.spec == plan.spec else None


def _changed(plan: CorpusPlan) -> ValueError:
    return ValueError(f"data {plan.spec.source!r}: the text changed while it was prepared: run it again")


Texts = Callable[[], Iterator[tuple[bool, str]]]
"""Reader of every text of a corpus with a flag for held-out text, which comes first; each call starts from the beginning."""


class _Document(NamedTuple):
    """Document as the first pass finds it: size, digest, index among the texts, and whether it is held-out text."""

    num_bytes: int
    digest: bytes
    place: int
    heldout: bool


def _build(plan: CorpusPlan, source: TextualSource, folder: Path, report: Progress) -> None:
    texts, length = _texts(plan, source, folder, report), plan.spec.document_len
    if plan.packed:
        build_packed(plan, texts, folder, report)
        return
    documents, total = _scan(texts, report)
    heldout = _choose_heldout(documents, plan)
    in_heldout = np.array([d.place in heldout for d in documents])
    train = {d.place for d in documents} - heldout
    tokenizer = tokenizer_of(plan, (text for i, (_, text) in enumerate(texts()) if i in train), report)
    num_tokens = _tokenise(texts, documents, tokenizer, length, folder, report)
    if len(num_tokens) != len(documents):
        raise _changed(plan)
    rows = num_tokens // length
    firsts = np.cumsum(rows) - rows
    for name, members in (("train", ~in_heldout), ("held-out", in_heldout)):
        if not rows[members].any():
            what = f"no {name} document has {length} tokens, the longest has {num_tokens[members].max()}"
            raise ValueError(f"data {plan.spec.source!r}: {what}: give more or longer documents, or a smaller document_len")
        path = folder / f"{name.replace('-', '')}.zarr"
        report(f"writing {path.name}")
        tokens = np.memmap(folder / "rows", np.uint16, "r", shape=(int(rows.sum()), length))
        order = interleave(firsts[members], rows[members])
        array = create_array(path, len(order), length, tokenizer.kind)
        step = array.chunks[0]
        for start in range(0, len(order), step):
            array[start : start + step] = tokens[order[start : start + step]]
    del tokens
    documents_of_rows = np.searchsorted(np.cumsum(rows), order, side="right")  # of the held-out rows, which come last
    sources = np.searchsorted(np.flatnonzero(in_heldout), documents_of_rows)
    (folder / HELDOUT_SOURCES).write_text(json.dumps(sources.tolist()))
    counts = Counts(
        documents=total,
        duplicates=total - len(documents),
        too_short=int((rows == 0).sum()),
        train_documents=int((rows[~in_heldout] > 0).sum()),
        heldout_documents=int((rows[in_heldout] > 0).sum()),
        train_rows=int(rows[~in_heldout].sum()),
        heldout_rows=int(rows[in_heldout].sum()),
        dropped_tokens=int((num_tokens % length).sum()),
    )
    for spool in ("rows", "documents.jsonl"):
        (folder / spool).unlink(missing_ok=True)
    finish(plan, tokenizer, counts, folder, report)


def _texts(plan: CorpusPlan, source: TextualSource, folder: Path, report: Progress) -> Texts:
    """Return a reader of the held-out text followed by the source. Text from the hub is first stored on disk, unless it is
    packed in one pass."""
    spool = folder / "documents.jsonl"
    spooled = isinstance(source, HubSource) and not plan.packed
    if spooled:
        with spool.open("w", encoding="ascii") as file:
            for number, text in enumerate(islice(source.documents(), plan.max_documents), 1):
                file.write(json.dumps({"text": text}) + "\n")
                if number % 10_000 == 0:
                    report(f"fetched {number} documents")

    def read() -> Iterator[tuple[bool, str]]:
        if plan.heldout is not None:
            yield from ((True, text) for text in plan.heldout.documents())
        documents = read_documents(spool) if spooled else islice(source.documents(), plan.max_documents)
        yield from ((False, text) for text in documents)

    return read


def _scan(texts: Texts, report: Progress) -> tuple[list[_Document], int]:
    """Return the distinct documents in order, and the number of documents including duplicates."""
    found: dict[bytes, _Document] = {}
    total = 0
    for index, (heldout, text) in enumerate(texts()):
        content = text.encode("utf-8", "surrogatepass")
        if content.strip():
            total += 1
            digest = hashlib.sha256(content).digest()
            found.setdefault(digest, _Document(len(content), digest, index, heldout))
    report(f"found {len(found)} documents, {sum(d.num_bytes for d in found.values()) / 1e6:.1f} MB of text")
    return list(found.values()), total


def _choose_heldout(documents: list[_Document], plan: CorpusPlan) -> set[int]:
    """Return the indices of the held-out documents: those of the separate held-out text if there is one, else as many
    candidates as fit into the fraction, in the order of their digests, or the smallest candidate if none fits."""
    if plan.heldout is not None:
        chosen = {d.place for d in documents if d.heldout}
        if not 0 < len(chosen) < len(documents):
            what = "no text in it" if not chosen else "all the text that there is to train on"
            raise ValueError(f"data {plan.spec.source!r}: the held-out text has {what}: name other files")
        return chosen
    if len(documents) < 2:
        what = f"data {plan.spec.source!r} has {len(documents)} distinct documents with text: at least 2 are needed"
        raise ValueError(f"{what}, one to hold out. A .txt file is one document, and so is each line of a .jsonl file")
    candidates = [d for d in documents if d.num_bytes >= _BYTES_PER_TOKEN * plan.spec.document_len]
    if len(candidates) < 2:  # too few are surely long enough: hold out the second longest, train on the longest
        candidates = sorted(documents)[-2:-1]
    budget = plan.heldout_fraction * sum(d.num_bytes for d in documents)
    chosen = set()
    for document in sorted(candidates, key=lambda d: d.digest):
        if document.num_bytes <= budget:
            budget -= document.num_bytes
            chosen.add(document.place)
    return chosen or {min(candidates).place}


def _tokenise(
    texts: Texts, documents: list[_Document], tokenizer: Tokenizer, document_len: int, folder: Path, report: Progress
) -> np.ndarray:
    """Write the complete rows of each document to the spool. Return the tokens per document, including those left over."""
    wanted = {d.place for d in documents}
    num_tokens: list[int] = []
    read = batches_of((text for index, (_, text) in enumerate(texts()) if index in wanted), len)
    with (folder / "rows").open("wb") as spool, Prefetcher(read, depth=1) as batches:
        for number, batch in enumerate(batches, 1):
            for ids in tokenizer.encode_batch(batch):
                num_tokens.append(len(ids))
                spool.write(ids[: len(ids) // document_len * document_len].tobytes())
            if number % 8 == 0:
                report(f"tokenised {len(num_tokens)} of {len(documents)} documents, {sum(num_tokens) / 1e6:.1f}M tokens")
    return np.array(num_tokens, dtype=np.int64)


def interleave(firsts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the order of the spooled rows in the array. `firsts`, `rows`: first spooled row and number of rows of each
    document."""
    document = np.repeat(np.arange(len(rows)), rows)
    row = np.arange(len(document)) - np.repeat(np.cumsum(rows) - rows, rows)
    place = (row + (document + 0.5) / len(rows)) / rows[document]
    return (firsts[document] + row)[np.lexsort((document, place))]
