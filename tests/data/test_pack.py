"""Packed corpora: every token once and in order behind its BOS and one pass."""

from pathlib import Path

import numpy as np
import pytest

import data.pack
from data.corpus import Corpus
from data.prepare import prepare
from tests.data.test_prepare import plan_for

PACKED = dict(packed=True, document_len=64, heldout_fraction=0.3)


@pytest.fixture
def short_texts(tmp_path: Path) -> Path:
    """60 documents of 5 to 240 bytes: most are shorter than a row."""
    folder = tmp_path / "short"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i:02d}.txt").write_text(f"document {i} " + "words and more " * (i % 16))
    return folder


def documents_in(corpus: Corpus, split: str) -> list[str]:
    """The rows of a split as one stream, cut at BOS."""
    stream = getattr(corpus, split).read(slice(None)).ravel()
    starts = np.flatnonzero(stream == corpus.spec.bos_id)
    assert starts[0] == 0
    return [corpus.tokenizer.decode(part[1:].tolist()) for part in np.split(stream, starts[1:])]


@pytest.mark.parametrize("kind", ["bytes", "bpe-300"])
@pytest.mark.parametrize("rows_per_write", [1, 256])
def test_rows_hold_every_document_once_behind_bos(short_texts, monkeypatch, kind, rows_per_write):
    """In the source's order; a text alone decides whether it is held out."""
    monkeypatch.setattr(data.pack, "ROWS_PER_WRITE", rows_per_write)
    corpus = prepare(plan_for(short_texts, kind, **PACKED))
    wanted = [path.read_text() for path in sorted(short_texts.iterdir())]
    found = {split: documents_in(corpus, split) for split in ("train", "heldout")}
    for texts in found.values():
        order = [wanted.index(text) for text in texts[:-1]]
        assert order == sorted(order)
        assert any(text.startswith(texts[-1]) for text in wanted)  # the last may be cut: its rest fills no row
    assert not set(found["train"][:-1]) & set(found["heldout"][:-1])
    counts = corpus.counts
    assert counts.documents == counts.train_documents + counts.heldout_documents == 60 and 5 < counts.heldout_documents < 35
    tokens = sum(1 + len(corpus.tokenizer.encode(text)) for text in wanted)
    assert (counts.train_rows + counts.heldout_rows) * 64 + counts.dropped_tokens == tokens
    assert counts.dropped_tokens < 2 * 64
    (short_texts / "00.txt").unlink()
    (short_texts / "59.txt").rename(short_texts / "00.txt")
    again = documents_in(prepare(plan_for(short_texts, kind, **PACKED)), "heldout")
    missing = set(found["heldout"][:-1]) - {wanted[0], *again}
    assert all(text.startswith(again[-1]) for text in missing)  # only the last, which its row's end cuts


@pytest.mark.parametrize(("most", "kept"), [(None, 9), (5, 5), (20, 5), (21, 9)])
def test_texts_are_packed_until_there_are_enough_tokens(most, kept, tmp_path, monkeypatch):
    """By batches."""
    monkeypatch.setattr(data.pack, "_BATCH_CHARS", 12)
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n' * 9 + '{"text": " "}\n')
    (tmp_path / "held.txt").write_text("h" * 9)
    how = dict(packed=True, document_len=8, cache_dir=tmp_path / "cache", max_tokens=most)
    corpus = prepare(plan_for(tmp_path / "a.jsonl", heldout=str(tmp_path / "held.txt"), **how))
    assert (corpus.counts.train_documents, corpus.counts.heldout_documents) == (kept, 1)
    assert corpus.heldout.read(slice(None)).tolist() == [[256, *b"hhhhhhh"]]
    assert corpus.counts.dropped_tokens == 2 + 4 * kept - 8 * corpus.counts.train_rows


@pytest.mark.parametrize("kind", ["bytes", "bpe-300"])
def test_held_out_text_within_the_data_is_not_trained_on(short_texts, monkeypatch, kind):
    """Neither by the model nor by a BPE, however often the data have it; all other texts count as often as they come."""
    held = [*sorted(short_texts.iterdir())[5:25], short_texts / "40.txt"]
    (short_texts / "80.txt").write_text(held[0].read_text())
    (short_texts / "81.txt").write_text((short_texts / "00.txt").read_text())
    seen: list[str] = []
    trained = data.pack.train_bpe
    monkeypatch.setattr(data.pack, "train_bpe", lambda texts, size: trained(seen.extend(texts) or seen, size))
    corpus = prepare(plan_for(short_texts, kind, heldout=",".join(map(str, held)), **PACKED))
    wanted = [path.read_text() for path in sorted(short_texts.iterdir()) if path not in held and path.name != "80.txt"]
    assert seen == (wanted if kind == "bpe-300" else [])
    for split, texts in (("train", wanted), ("heldout", [path.read_text() for path in held])):
        assert "|".join(texts).startswith("|".join(documents_in(corpus, split)))  # a rest that fills no row is left out
    assert (corpus.counts.documents, corpus.counts.train_documents, corpus.counts.heldout_documents) == (61, 40, 21)
