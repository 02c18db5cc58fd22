"""Nothing that a text or a task becomes changes unnoticed: corpora of all forms and what is told on the way, sequences of
tasks and the order of training are written down. What is new need not be there yet."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from data import pack, prepare
from data.corpus import HELDOUT_SOURCES, Corpus, read_about
from data.plan import resolve
from data.recall import RecallSampler, RecallTask, heldout
from data.sampler import Sampler, load_batch
from data.split import Split
from data.tokenizer import parse_tokenizer, train_bpe
from tests.texts import sentences

FIELDS = ("num_keys", "num_assignments", "num_queries", "num_symbols", "pairs_first")
WRITTEN = Path(__file__).with_suffix(".txt")


def digest(content: Any) -> str:
    body = np.ascontiguousarray(content).tobytes() if isinstance(content, np.ndarray) else str(content).encode()
    return hashlib.sha256(body).hexdigest()[:12]


def texts_in(folder: Path) -> None:
    """Documents of very different lengths, some equal, one empty, in files of two forms."""
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}.txt").write_text(sentences(number, 3 + 7 * (number * 5 % 9)))
    (folder / "same.txt").write_text(sentences(3, 3 + 7 * 6))
    (folder / "empty.txt").write_text(" \n")
    lines = [json.dumps({"text": text}) for text in ("short one", "ünï \ud800 " * 90, "short one", sentences(11, 40))]
    (folder / "z.jsonl").write_text("\n".join(lines) + "\n")


def corpora(folder: Path) -> Iterator[str]:
    texts, other = folder / "texts", folder / "other"
    texts_in(texts)
    other.mkdir()
    (other / "held.txt").write_text(sentences(77, 60))
    base = dict(tokenizer="bytes", document_len=256, cache_dir=folder / "corpora")
    for name, changes in {
        "bytes": {}, "bpe": dict(tokenizer="bpe-300"), "longer": dict(document_len=1000), "half": dict(heldout_fraction=0.5),
        "few": dict(max_documents=4), "other": dict(heldout=str(other)), "packed": dict(packed=True, heldout_fraction=0.4),
        "packed bpe": dict(packed=True, tokenizer="bpe-300", heldout_fraction=0.4),
             "some": dict(packed=True, max_tokens=600, heldout_fraction=0.4),
        "packed other": dict(packed=True, heldout=str(other), document_len=100), "none": dict(document_len=60_000),
        "one": dict(max_documents=1), "packed none": dict(packed=True, document_len=60_000),
             "fraction": dict(heldout_fraction=0.03),
    }.items():  # fmt: skip
        told: list[str] = []
        try:
            plan = resolve(f"text:{texts}", **{**base, **changes})
            corpus = prepare.prepare(plan, progress=told.append)
        except ValueError as error:
            yield f"{name}: {error}"
            continue
        about = read_about(corpus.folder)
        yield f"{name}: {about.spec} {about.counts} {about.counts.summary} {plan.ready} {plan.counts() == about.counts}"
        for split in (corpus.train, corpus.heldout):
            array = zarr.open_array(split.path, mode="r")
            chunks = f"{array.chunks} {array.metadata.compressor} {dict(array.attrs)}"
            yield f"{name}, {split.path.name}: {split.shape} {digest(split.read(slice(None)))} {chunks}"
        sources = corpus.folder / HELDOUT_SOURCES
        files = {path.relative_to(corpus.folder).as_posix() for path in corpus.folder.rglob("*") if path.is_file()}
        beside = sorted(file for file in files if ".zarr/" not in file)
        yield f"{name}: {sources.read_text() if sources.exists() else '-'} {beside}"
        yield f"{name}: {told}"
        again: list[str] = []
        opened = Corpus.open(prepare.prepare(resolve(f"text:{texts}", **{**base, **changes}), progress=again.append).folder)
        yield f"{name}: {again} {opened.tokenizer.encode('forget me')}"


def orders() -> Iterator[str]:
    for firsts, rows in (([0, 3, 4], [3, 1, 6]), ([5, 0], [2, 2]), ([0], [4]), ([0, 2, 2, 9], [2, 0, 7, 1])):
        yield f"{firsts} {rows}: {prepare.interleave(np.array(firsts), np.array(rows)).tolist()}"
    for sizes in ((7, 100, 30, 2), (5, 64, 64, 5), (10, 50, 16, 3)):
        sampler = Sampler(*sizes)
        rows = [(documents.tolist(), start) for documents, start in (sampler.rows(step) for step in range(9))]
        yield f"{sizes}: {sampler.num_batches} {sampler.batches_per_column} {sampler.epochs(7):.4g} {rows}"


def recall() -> Iterator[str]:
    for sizes in ((4, 1, 1, 8), (3, 2, 3, 9), (5, 3, 1, 5), (4, 1, 1, 8, True), (8, 1, 1, 16, True)):
        task = RecallTask(**dict(zip(FIELDS, sizes, strict=False)))
        tokens, queries = task.sequences(5, (1, 2, 3))
        held = heldout(task, 3)
        made = RecallSampler(task, 4, 7)
        inputs, targets = made.batch(2, 1, 2)
        yield f"{sizes}: {task.seq_len} {task.blank} {task.times} {tokens[0].tolist()} {queries[0].astype(int).tolist()}"
        yield f"{sizes}: {' '.join(map(digest, (tokens, queries, *held)))} {made.rows(2, 1, 2)} {made.epochs(9)}"
        yield f"{sizes}: {inputs.tolist()} {targets.tolist()}"


def ids() -> Iterator[str]:
    texts = ["The gate forgets; naïve 日本 🦊\n\t 12 345", "", "a" * 9, "\ud800 lone", "<|endoftext|> is text"]
    bpe = train_bpe([sentences(1, 80), "naïve gates"], 400)
    for tokenizer in (bpe, parse_tokenizer("bytes").load()):
        encoded = [each.tolist() for each in tokenizer.encode_batch(texts)]
        yield f"{tokenizer.kind} {tokenizer.vocab_size} {tokenizer.bos_id}: {encoded}"
        yield f"{tokenizer.kind}: {[tokenizer.decode([*each, tokenizer.bos_id]) for each in encoded]!a}"
        hf = tokenizer.to_hf()
        plain = hf(texts[0], add_special_tokens=False)["input_ids"]
        yield f"{tokenizer.kind}: {hf(texts[0])['input_ids']} {plain[:4]} {hf.pad_token_id}"
    for name in (
        "bytes",
        "bpe-257",
        "bpe-65536",
        "gpt2",
        "gpt2-json:/x",
        "bpe-256",
        "bpe-65537",
        "bpe-0300",
        "bytes:x",
        "gpt",
        "bpe-",
    ):
        try:
            choice = parse_tokenizer(name)
            yield f"{name}: {choice} {choice.vocab_size} {choice.trained}"
        except ValueError as error:
            yield f"{name}: {error}"


@pytest.fixture
def stated(tmp_path) -> list[str]:
    parts = (corpora(tmp_path), orders(), recall(), ids())
    return list(dict.fromkeys(line.replace(str(tmp_path), "DIR") for part in parts for line in part))


def test_all_that_data_become_is_the_same_that_is_written_down(stated, tmp_path):
    (tmp_path / WRITTEN.name).write_text("\n".join(stated) + "\n")
    gone = set(WRITTEN.read_text().splitlines()) - set(stated)
    assert not gone, f"where that is meant: cp {tmp_path}/{WRITTEN.name} {WRITTEN}"


@pytest.mark.parametrize(("cached", "decoded"), [(10**6, 4), (4096, 5), (4095, 6), (2048, 6), (100, 6)])
def test_chunks_are_kept_up_to_a_limit(tmp_path, write_zarr, monkeypatch, cached, decoded):
    """Blocks of 8 x 128 tokens of two bytes each, asked for in an order that comes back; beyond the limit none is kept."""
    tokens = (1 + np.arange(16 * 256) % 60_000).astype(np.uint16).reshape(16, 256)
    write_zarr(tmp_path / "a.zarr", tokens, (8, 128))
    monkeypatch.setattr("data.split.CACHED_BYTES", cached)
    split, calls = Split(tmp_path / "a.zarr", vocab_size=2**16), []
    whole = Split._decode
    monkeypatch.setattr(Split, "_decode", lambda self, *given: calls.append(given) or whole(self, *given))
    for row, start in ((0, 0), (0, 128), (9, 0), (9, 128), (0, 0), (9, 130)):
        assert split.read(np.array([row]), start, start + 100).tolist() == tokens[row : row + 1, start : start + 100].tolist()
    assert len(calls) == decoded
    inputs, targets = load_batch(split, Sampler(16, 256, 64, 4), 5, 1, 2, bos_id=9)
    rows, start = Sampler(16, 256, 64, 4).rows(5, 1, 2)
    assert (rows.tolist(), start) == ([6, 7], 64) and targets.tolist() == tokens[6:8, 64:128].tolist()
    assert inputs[:, 0].tolist() == [9, 9] and inputs[:, 1:].tolist() == targets[:, :-1].tolist()


@pytest.mark.parametrize(("size", "batches"), [(3, ["abcd", "efgh"]), (5, ["ab", "cd", "ef", "gh"]), (99, list("abcdefgh"))])
def test_texts_are_tokenised_in_batches(monkeypatch, size, batches):
    monkeypatch.setattr(pack, "_BATCH_CHARS", 10)
    assert ["".join(batch) for batch in pack.batches_of(iter("abcdefgh"), lambda item: size)] == batches
