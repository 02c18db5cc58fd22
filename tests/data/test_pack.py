"""Packed corpora: every token once and in order behind its BOS, one pass, bounded memory, and what they refuse."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import data.pack
from data.corpus import Corpus
from data.plan import CorpusPlan, resolve
from data.prepare import prepare

LENGTH = 64


@pytest.fixture
def short_texts(tmp_path: Path) -> Path:
    """60 documents of 5 to 240 bytes: most are shorter than a row."""
    folder = tmp_path / "short"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i:02d}.txt").write_text(f"document {i} " + "words and more " * (i % 16))
    return folder


def plan_for(folder: Path, **changes: object) -> CorpusPlan:
    settings = {"tokenizer": "bytes", "document_len": LENGTH, "heldout_fraction": 0.3, "packed": True} | changes
    return resolve(f"text:{folder}", cache_dir=folder.parent / "cache", **settings)  # type: ignore[arg-type]


def documents_in(corpus: Corpus, split: str) -> list[str]:
    """The rows of a split as one stream, cut at BOS."""
    stream = getattr(corpus, split).read(slice(None)).ravel()
    starts = np.flatnonzero(stream == corpus.spec.bos_id)
    assert starts[0] == 0
    return [corpus.tokenizer.decode(part[1:].tolist()) for part in np.split(stream, starts[1:])]


@pytest.mark.parametrize("kind", ["bytes", "bpe-300"])
@pytest.mark.parametrize("rows_per_write", [1, 256])
def test_rows_hold_every_document_once_behind_bos(short_texts, monkeypatch, kind, rows_per_write):
    monkeypatch.setattr(data.pack, "ROWS_PER_WRITE", rows_per_write)
    corpus = prepare(plan_for(short_texts, tokenizer=kind))
    wanted = [path.read_text() for path in sorted(short_texts.iterdir())]
    found = {split: documents_in(corpus, split) for split in ("train", "heldout")}
    for texts in found.values():
        order = [wanted.index(text) for text in texts[:-1]]
        assert order == sorted(order)  # the source's order
        assert any(text.startswith(texts[-1]) for text in wanted)  # the last may be cut: its rest fills no row
    assert not set(found["train"][:-1]) & set(found["heldout"][:-1])
    counts = corpus.counts
    assert counts.documents == 60 and counts.train_documents + counts.heldout_documents == 60
    tokens = sum(1 + len(corpus.tokenizer.encode(text)) for text in wanted)
    assert (counts.train_rows + counts.heldout_rows) * LENGTH + counts.dropped_tokens == tokens
    assert counts.dropped_tokens < 2 * LENGTH
    assert 5 < counts.heldout_documents < 35


def test_a_document_is_held_out_by_its_text_alone(short_texts):
    first = documents_in(prepare(plan_for(short_texts)), "heldout")
    (short_texts / "00.txt").unlink()
    (short_texts / "59.txt").rename(short_texts / "00.txt")
    again = documents_in(prepare(plan_for(short_texts)), "heldout")
    kept = {path.read_text() for path in short_texts.iterdir()}
    missing = {text for text in first[:-1] if text in kept} - set(again)
    assert all(text.startswith(again[-1]) for text in missing)  # only the last, which its row's end cuts


def test_packing_and_its_end_belong_to_the_identity(short_texts):
    plain, packed, cut = plan_for(short_texts, packed=False), plan_for(short_texts), plan_for(short_texts, max_tokens=500)
    assert len({plan.spec.fingerprint for plan in (plain, packed, cut)}) == 3
    corpus = prepare(cut)
    assert corpus.counts.train_rows * LENGTH >= 500 - LENGTH
    assert prepare(cut).counts == corpus.counts


def test_held_out_text_of_its_own(short_texts, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("held out " * 40)
    corpus = prepare(plan_for(short_texts, heldout=str(other)))
    assert documents_in(corpus, "heldout") == [("held out " * 40)[: LENGTH * 5 - 1]]
    assert corpus.counts.train_documents == 60


@pytest.mark.parametrize("kind", ["bytes", "bpe-300"])
def test_held_out_text_within_the_data_is_not_trained_on(short_texts, tmp_path, monkeypatch, kind):
    """Neither by the model nor by a BPE, however often the data have it; all other texts count as often as they come."""
    held = [*sorted(short_texts.iterdir())[5:25], short_texts / "40.txt"]
    (short_texts / "80.txt").write_text(held[0].read_text())
    (short_texts / "81.txt").write_text((short_texts / "00.txt").read_text())
    seen: list[str] = []
    trained = data.pack.train_bpe
    monkeypatch.setattr(data.pack, "train_bpe", lambda texts, size: trained(seen.extend(texts) or seen, size))
    plan = plan_for(short_texts, heldout=",".join(map(str, held)), tokenizer=kind)
    corpus = prepare(plan)
    wanted = [path.read_text() for path in sorted(short_texts.iterdir()) if path not in held and path.name != "80.txt"]
    assert seen == (wanted if kind == "bpe-300" else [])
    for split, texts in (("train", wanted), ("heldout", [path.read_text() for path in held])):
        assert "|".join(texts).startswith("|".join(documents_in(corpus, split)))  # a rest that fills no row is left out
    counts = corpus.counts
    assert (counts.documents, counts.train_documents, counts.heldout_documents) == (61, 40, 21)
    others = dict(heldout=str(held[0])), dict(heldout=str(held[0]), max_tokens=9), dict(heldout_fraction=0.2)
    assert len({plan.spec.fingerprint, *(plan_for(short_texts, **other).spec.fingerprint for other in others)}) == 4


def test_data_that_are_all_held_out_are_refused(short_texts):
    for kind in ("bytes", "bpe-300"):
        with pytest.raises(
            ValueError, match="the train documents have 0 tokens in all, less than one row of 64: give more text"
        ):
            prepare(plan_for(short_texts, heldout=str(short_texts), tokenizer=kind))


def test_memory_does_not_grow_with_the_number_of_documents(tmp_path, monkeypatch):
    """With batches and writes small beside the corpus."""
    monkeypatch.setattr(data.pack, "_BATCH_CHARS", 1 << 16)
    monkeypatch.setattr(data.pack, "ROWS_PER_WRITE", 64)

    def peak(count: int) -> int:
        folder = tmp_path / str(count)
        folder.mkdir()
        plan = plan_for(short_texts_file(folder))

        def texts() -> Iterator[tuple[bool, str]]:
            return ((False, f"document {i} " + "x" * 40) for i in range(count))

        tracemalloc.start()
        data.pack.build_packed(plan, texts, folder, lambda message: None)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    def short_texts_file(folder: Path) -> Path:
        (folder / "texts").mkdir()
        (folder / "texts" / "a.txt").write_text("a")
        return folder / "texts"

    small, large = peak(5_000), peak(20_000)
    assert large < 1.5 * small


def test_what_cannot_be_packed_is_refused(tmp_path, short_texts):
    with pytest.raises(ValueError, match="tokens in all, less than one row of 4096"):
        prepare(plan_for(short_texts, document_len=4096))
    for name in ("train", "heldout"):
        (tmp_path / "long" / f"{name}.zarr").mkdir(parents=True)
    with pytest.raises(ValueError, match="tokenised already, and has no short documents to pack"):
        resolve(f"longcrawl64:{tmp_path / 'long'}", cache_dir=tmp_path, packed=True)
