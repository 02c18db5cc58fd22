"""Reading zarr corpora: what is read, how often chunks are decoded, and every fault a copy may have."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numcodecs
import numpy as np
import pytest

import data.split
from data.corpus import Corpus
from data.plan import resolve
from data.prepare import prepare
from data.split import DamagedTokens, Split

VOCAB = 50257


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(1, VOCAB, (37, 1000)).astype(np.uint16)


@pytest.fixture
def split(tmp_path: Path, tokens: np.ndarray, write_zarr: Callable) -> Split:
    write_zarr(tmp_path / "train.zarr", tokens)
    return Split(tmp_path / "train.zarr", vocab_size=VOCAB)


@pytest.mark.parametrize("kept", [1 << 20, 10])
def test_read_gives_what_was_stored(tokens, kept, tmp_path, write_zarr, monkeypatch):
    """With room for all chunks and for one; to several threads."""
    monkeypatch.setattr(data.split, "CACHED_BYTES", kept)
    write_zarr(tmp_path / "train.zarr", tokens)
    split = Split(tmp_path / "train.zarr", vocab_size=VOCAB)
    right = []
    assert (split.read(slice(None)) == tokens).all() and split.shape == tokens.shape
    assert (split.read(slice(5, 20), 990) == tokens[5:20, 990:]).all()

    def read(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(15):
            start, stop = np.sort(generator.choice(1001, 2, replace=False))
            rows = generator.integers(0, 37, 9)
            right.append((split.read(rows, start, stop) == tokens[rows, start:stop]).all())

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 60 and all(right)
    for outside in ((slice(0, 1), 0, 1001), (slice(0, 1), -1, 9), (slice(0, 1), 5, 5), (np.array([37]), 0, 9)):
        with pytest.raises(IndexError):
            split.read(*outside)


def test_reading_in_order_decodes_each_chunk_once(split):
    for first in range(0, 36, 3):  # 8 rows a chunk: some batches lie in two
        split.read(slice(first, first + 3), 256, 512)
    assert split._chunk.cache_info().misses == 5


def test_a_token_outside_the_vocabulary_names_the_document(tmp_path, tokens, write_zarr):
    tokens[19, 700] = VOCAB
    write_zarr(tmp_path / "train.zarr", tokens)
    split = Split(tmp_path / "train.zarr", vocab_size=VOCAB)
    split.read(slice(0, 37), 0, 700)
    with pytest.raises(ValueError, match=r"document 19 holds token 50257"):
        split.read(slice(16, 24))


@pytest.mark.parametrize("rows", [slice(11, 12), slice(8, 16)], ids=["one document", "a whole chunk"])
@pytest.mark.parametrize("width", [500, 1000])
def test_documents_of_zeros_are_refused(tmp_path, tokens, write_zarr, rows, width):
    """As a mirror has them; a few zeros are tokens like others."""
    tokens[rows] = 0
    tokens[3, 100:200] = 0
    write_zarr(tmp_path / "train.zarr", tokens)
    split = Split(tmp_path / "train.zarr", vocab_size=VOCAB)
    assert not split.read(slice(3, 4), 100, 200).any()
    with pytest.raises(ValueError, match=rf"documents? (from )?{rows.start}\b"):
        split.read(np.array([rows.start]), 0, width)


@pytest.mark.parametrize("codec", ["Blosc", "GZip", "LZ4", "Zstd"])
def test_a_chunk_that_is_damaged_cut_short_or_missing(codec, tmp_path, tokens, write_zarr):
    write_zarr(tmp_path / "train.zarr", tokens, compressor=getattr(numcodecs, codec)())
    chunk = tmp_path / "train.zarr" / "2.1"
    whole = chunk.read_bytes()
    for fault in (bytes(len(whole)), b"\xff" * 32 + whole[32:], whole[: len(whole) // 2], whole[:-1], b""):
        chunk.write_bytes(fault)
        with pytest.raises(DamagedTokens, match=r"^[^\n]*train\.zarr[^\n]* again$"):
            Split(tmp_path / "train.zarr", vocab_size=VOCAB).read(slice(16, 17))
    chunk.unlink()
    split = Split(tmp_path / "train.zarr", vocab_size=VOCAB)
    with pytest.raises(ValueError, match=r"2\.1 is missing"):
        split.read(slice(16, 17))
    assert (split.read(slice(16, 17), 512) == tokens[16:17, 512:]).all(), "other chunks can still be read"


@pytest.mark.parametrize(
    "array", [np.ones((4, 8), np.int32), np.ones((4, 8), ">u2"), np.ones(8, np.uint16), np.ones((0, 8), np.uint16), None]
)
def test_wrong_arrays(longcrawl64, write_zarr, array):
    shutil.rmtree(longcrawl64 / "heldout.zarr")
    if array is not None:
        write_zarr(longcrawl64 / "heldout.zarr", array)
    with pytest.raises(ValueError, match=r"heldout\.zarr"):
        Corpus.open(longcrawl64)


def test_longcrawl64_in_place(longcrawl64, tmp_path, gpt2_folder):
    """As long as is asked for, with GPT-2's vocabulary, and nothing written."""
    how = dict(cache_dir=tmp_path / "cache", tokenizer=f"gpt2-json:{gpt2_folder}")
    plan = resolve(f"longcrawl64:{longcrawl64}", **how)
    assert plan.ready and (plan.spec.document_len, plan.spec.vocab_size, plan.spec.bos_id) == (1024, 50257, 50256)
    corpus, counts = prepare(plan), plan.counts()
    assert (corpus.train.shape, corpus.heldout.shape, corpus.tokenizer.bos_id) == ((37, 1024), (5, 1024), 50256)
    assert counts is not None and (counts.documents, counts.train_rows, counts.heldout_rows) == (42, 37, 5)
    short = resolve(f"longcrawl64:{longcrawl64}", document_len=256, **how)
    assert short.spec.fingerprint != plan.spec.fingerprint
    assert (prepare(short).train.read(slice(3, 4)) == 1 + 3 * 1024 + np.arange(256)).all()
    assert not (tmp_path / "cache").exists()
    for wrong in (dict(document_len=2048), dict(tokenizer="bytes"), dict(packed=True)):
        with pytest.raises(ValueError, match=r"tokenised already|fewer than the 2048"):
            resolve(f"longcrawl64:{longcrawl64}", **{**how, **wrong})


def test_longcrawl64_fingerprint_is_of_content_and_shape(longcrawl64, tmp_path, write_zarr, monkeypatch):
    first = Corpus.open(longcrawl64).spec.fingerprint
    moved = longcrawl64.rename(tmp_path / "elsewhere")
    assert Corpus.open(moved).spec.fingerprint == first
    monkeypatch.setattr("data.corpus._FINGERPRINT_DOCUMENTS", 4)
    found = {first}
    for number, train in enumerate(((8, 4096), (7, 4096), (8, 3072), (8, 3072))):
        for name, (documents, length) in {"train": train, "heldout": (6, train[1])}.items():
            tokens = np.arange(documents * length, dtype=np.uint16).reshape(documents, length) % 1000 + 1 + number // 3
            write_zarr(tmp_path / f"{number}" / f"{name}.zarr", tokens)
        found.add(Corpus.open(tmp_path / f"{number}").spec.fingerprint)
    assert len(found) == 5


@pytest.mark.parametrize("part", [
    "train.zarr/0.0", "heldout.zarr/0.0", "train.zarr/.zarray", "tokenizer/tokenizer.json", "heldout-sources.json"
])  # fmt: skip
def test_every_flipped_bit_of_a_prepared_corpus_is_noticed(text_folder, tmp_path, part):
    corpus = prepare(resolve(f"text:{text_folder}", tokenizer="bytes", document_len=128, cache_dir=tmp_path / "cache"))
    path = corpus.folder / part
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, 8 * len(whole), 20):
        altered = bytearray(whole)
        altered[place // 8] ^= 1 << (place % 8)
        path.write_bytes(altered)
        with pytest.raises(DamagedTokens, match=rf"{part}.*: delete {corpus.folder}; it is made again"):
            read_all(Corpus.open(corpus.folder))
    path.unlink()
    with pytest.raises(DamagedTokens, match=rf"{part}.*: delete {corpus.folder}; it is made again"):
        read_all(Corpus.open(corpus.folder))
    path.write_bytes(whole)
    read_all(Corpus.open(corpus.folder))


def read_all(corpus: Corpus) -> None:
    corpus.train.read(slice(None))
    corpus.heldout.read(slice(None))
    assert corpus.tokenizer.vocab_size == 257 and corpus.heldout_sources is not None
