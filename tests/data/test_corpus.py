"""Reading zarr corpora: what is read, how often chunks are decoded, and every fault a copy may have."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numcodecs
import numpy as np
import pytest

import data.corpus
import data.split
from data.corpus import Corpus
from data.plan import resolve
from data.prepare import prepare
from data.split import Split

VOCAB = 50257


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(1, VOCAB, (37, 1000)).astype(np.uint16)


@pytest.fixture
def split(tmp_path: Path, tokens: np.ndarray, write_zarr: Callable) -> Split:
    write_zarr(tmp_path / "train.zarr", tokens)
    return Split(tmp_path / "train.zarr", vocab_size=VOCAB)


@pytest.mark.parametrize("cached_bytes", [1 << 20, 5000, 10])
def test_read_gives_what_was_stored(
    split: Split, tokens: np.ndarray, cached_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for everything, for one block, and for none."""
    monkeypatch.setattr(data.split, "CACHED_BYTES", cached_bytes)
    generator = np.random.default_rng(1)
    assert split.shape == tokens.shape
    assert (split.read(slice(None)) == tokens).all()
    for _ in range(30):
        start, stop = np.sort(generator.choice(1001, 2, replace=False))
        rows = generator.integers(0, 37, 9)
        assert (split.read(rows, start, stop) == tokens[rows, start:stop]).all()
        assert sum(block.nbytes for block in split._blocks.values()) <= cached_bytes
    assert (split.read(slice(5, 20), 990) == tokens[5:20, 990:]).all()


def test_reading_in_order_decodes_each_chunk_once(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    decode = split._decode
    monkeypatch.setattr(split, "_decode", lambda rows, cols: decoded.append((rows.start, cols.start)) or decode(rows, cols))
    for first in range(0, 36, 3):  # 8 rows a chunk: some batches lie in two
        split.read(slice(first, first + 3), 256, 512)
    assert decoded == [(row, 256) for row in range(0, 37, 8)]


def test_several_threads_may_read(split: Split, tokens: np.ndarray) -> None:
    wrong = []

    def read(seed: int) -> None:
        for row in np.random.default_rng(seed).integers(0, 37, 40):
            if not (split.read(slice(row, row + 1))[0] == tokens[row]).all():
                wrong.append(row)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_outside_the_array_is_a_programming_error(split: Split) -> None:
    with pytest.raises(IndexError):
        split.read(np.array([37]))
    shorter = Split(split.path, vocab_size=VOCAB, document_len=600)
    for given, stop in ((split, 1000), (shorter, 600)):
        assert given.read(slice(0, 1), stop - 1, stop).shape == (1, 1) and given.read(slice(0, 1)).shape == (1, stop)
        for outside in ((0, stop + 1), (stop, stop), (-1, stop), (5, 5)):
            with pytest.raises(IndexError):
                given.read(slice(0, 1), *outside)


def test_token_outside_the_vocabulary_names_the_document(tmp_path: Path, tokens: np.ndarray, write_zarr: Callable) -> None:
    tokens[19, 700] = VOCAB
    write_zarr(tmp_path / "train.zarr", tokens)
    split = Split(tmp_path / "train.zarr", vocab_size=VOCAB)
    split.read(slice(0, 37), 0, 700)
    with pytest.raises(ValueError, match=r"document 19 holds token 50257, outside the vocabulary of 50257"):
        split.read(slice(16, 24))


@pytest.mark.parametrize("rows", [slice(11, 12), slice(8, 16)], ids=["one document", "a whole chunk"])
@pytest.mark.parametrize("width", [500, 1000])
def test_all_zero_documents_name_the_first(
    tmp_path: Path, tokens: np.ndarray, write_zarr: Callable, rows: slice, width: int
) -> None:
    tokens[rows] = 0
    write_zarr(tmp_path / "train.zarr", tokens)
    for row in range(37):  # zarr leaves chunks of zeros out; the mirror has them
        assert tokens[row].any() or rows.start <= row < rows.stop
    split = Split(tmp_path / "train.zarr", vocab_size=VOCAB)
    split.read(slice(0, 8))
    with pytest.raises(ValueError, match=rf"documents? (from )?{rows.start}\b.*fetch"):
        split.read(np.array([rows.start]), 0, width)


def test_a_few_zeros_are_tokens_like_others(tmp_path: Path, tokens: np.ndarray, write_zarr: Callable) -> None:
    tokens[3, 100:200] = 0
    write_zarr(tmp_path / "train.zarr", tokens)
    assert not Split(tmp_path / "train.zarr", vocab_size=VOCAB).read(slice(3, 4), 100, 200).any()


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.999])
def test_chunks_that_were_cut_short(split: Split, kept: float) -> None:
    chunk = split.path / "2.1"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    with pytest.raises(ValueError, match=r"2\.1 is cut short \(documents from 16\).* again"):
        split.read(slice(16, 17))


def test_missing_and_damaged_chunks(split: Split) -> None:
    chunk = split.path / "2.1"
    chunk.write_bytes(b"\xff" * 4 + chunk.read_bytes()[4:])
    with pytest.raises(ValueError, match=r"documents 16 to 23: a chunk is damaged .* again"):
        split.read(slice(16, 17))
    chunk.unlink()
    with pytest.raises(ValueError, match=r"2\.1 is missing \(documents from 16\).* again"):
        split.read(slice(16, 17))
    split.read(slice(16, 17), 512)  # other chunks can still be read


@pytest.mark.parametrize("codec", ["Blosc", "GZip", "Zlib", "BZ2", "LZMA", "LZ4", "Zstd"])
def test_whatever_a_codec_says_of_a_damaged_chunk_is_one_clear_line(
    codec: str, tmp_path: Path, tokens: np.ndarray, write_zarr: Callable
) -> None:
    write_zarr(tmp_path / "train.zarr", tokens, compressor=getattr(numcodecs, codec)())
    chunk = tmp_path / "train.zarr" / "2.1"
    whole = chunk.read_bytes()
    for fault in (bytes(len(whole)), bytes(32) + whole[32:], b"\xff" * 32 + whole[32:], whole[: len(whole) // 2], whole[:-1]):
        chunk.write_bytes(fault)
        with pytest.raises(ValueError, match=r"^[^\n]*train\.zarr[^\n]* again$"):
            Split(tmp_path / "train.zarr", vocab_size=VOCAB).read(slice(16, 17))


def test_a_damaged_chunk_beside_a_few_zeros(tmp_path: Path, tokens: np.ndarray, write_zarr: Callable) -> None:
    """Tell whether a document is all zeros is seen in the whole of it."""
    tokens[3, :200] = 0
    write_zarr(tmp_path / "train.zarr", tokens)
    split = Split(tmp_path / "train.zarr", vocab_size=VOCAB)
    assert not split.read(slice(3, 4), 0, 200).any()
    chunk = split.path / "0.2"
    chunk.write_bytes(b"\xff" * 4 + chunk.read_bytes()[4:])
    with pytest.raises(ValueError, match=r"documents 3 to 3: a chunk is damaged"):
        split.read(slice(3, 4), 0, 200)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((4, 8), np.int32), "dtype int32.*uint16"),
        (np.ones((4, 8), ">u2"), "dtype >u2.*uint16"),
        (np.ones(8, np.uint16), r"shape \(8,\).*\(documents, tokens\)"),
        (np.ones((0, 8), np.uint16), "empty"),
        (np.ones((4, 0), np.uint16), "empty"),
    ],
)
def test_wrong_arrays(longcrawl64: Path, write_zarr: Callable, array: np.ndarray, message: str) -> None:
    shutil.rmtree(longcrawl64 / "heldout.zarr")
    write_zarr(longcrawl64 / "heldout.zarr", array)
    with pytest.raises(ValueError, match=f"heldout.zarr.*{message}"):
        Corpus.open(longcrawl64)


def test_not_a_zarr_array(longcrawl64: Path) -> None:
    (longcrawl64 / "train.zarr" / ".zarray").write_text("{")
    with pytest.raises(ValueError, match=r"train\.zarr is not a readable zarr array"):
        Corpus.open(longcrawl64)
    shutil.rmtree(longcrawl64 / "train.zarr")
    with pytest.raises(ValueError, match=r"train\.zarr does not exist"):
        Corpus.open(longcrawl64)


def test_longcrawl64_in_place(longcrawl64: Path, tmp_path: Path, gpt2_folder: Path) -> None:
    plan = resolve(f"longcrawl64:{longcrawl64}", cache_dir=tmp_path / "cache", tokenizer=f"gpt2-json:{gpt2_folder}")
    assert plan.ready
    assert (plan.spec.document_len, plan.spec.vocab_size, plan.spec.bos_id) == (1024, 50257, 50256)
    corpus = prepare(plan)
    assert corpus.train.shape == (37, 1024)
    assert corpus.heldout.shape == (5, 1024)
    assert corpus.tokenizer.bos_id == 50256
    assert not (tmp_path / "cache").exists()
    short = resolve(f"longcrawl64:{longcrawl64}", cache_dir=tmp_path / "cache", document_len=256)
    assert short.spec.fingerprint != plan.spec.fingerprint
    assert (prepare(short).train.read(slice(3, 4)) == 1 + 3 * 1024 + np.arange(256)).all()
    with pytest.raises(ValueError, match="documents of 1024 tokens, fewer than the 2048"):
        resolve(f"longcrawl64:{longcrawl64}", cache_dir=tmp_path, document_len=2048)
    with pytest.raises(ValueError, match="'bytes': LongCrawl64 is tokenised already"):
        resolve(f"longcrawl64:{longcrawl64}", cache_dir=tmp_path, tokenizer="bytes")


@pytest.mark.parametrize("part", [
    "train.zarr/0.0", "heldout.zarr/0.0", "train.zarr/.zarray", "tokenizer/tokenizer.json", "heldout-sources.json"
])  # fmt: skip
def test_every_flipped_bit_of_a_prepared_corpus_is_noticed(text_folder: Path, tmp_path: Path, part: str) -> None:
    corpus = prepare(resolve(f"text:{text_folder}", tokenizer="bytes", document_len=128, cache_dir=tmp_path / "cache"))
    path = corpus.folder / part
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, 8 * len(whole), 20):
        altered = bytearray(whole)
        altered[place // 8] ^= 1 << (place % 8)
        path.write_bytes(altered)
        with pytest.raises(ValueError, match=rf"{part} was altered .*: delete {corpus.folder}; it is made again"):
            read_all(Corpus.open(corpus.folder))
    path.unlink()
    with pytest.raises(ValueError, match=rf"{part} cannot be read .*: delete {corpus.folder}; it is made again"):
        read_all(Corpus.open(corpus.folder))
    path.write_bytes(whole)
    read_all(Corpus.open(corpus.folder))


def read_all(corpus: Corpus) -> None:
    corpus.train.read(slice(None))
    corpus.heldout.read(slice(None))
    assert corpus.tokenizer.vocab_size == 257 and corpus.heldout_sources is not None


def test_files_are_checked_once(text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = prepare(resolve(f"text:{text_folder}", tokenizer="bytes", document_len=128, cache_dir=tmp_path / "cache"))
    checked = []
    crc32 = data.corpus.zlib.crc32
    monkeypatch.setattr(data.corpus.zlib, "crc32", lambda content: checked.append(len(content)) or crc32(content))
    monkeypatch.setattr(data.split, "CACHED_BYTES", 10)  # so that every reading decodes
    for row in range(5):
        corpus.train.read(slice(row, row + 1))
    assert len(checked) == 1


def test_longcrawl64_counts(longcrawl64: Path, tmp_path: Path) -> None:
    counts = resolve(f"longcrawl64:{longcrawl64}", cache_dir=tmp_path).counts()
    assert counts is not None
    assert (counts.documents, counts.train_rows, counts.heldout_rows) == (42, 37, 5)


def test_longcrawl64_fingerprint_is_of_the_content(longcrawl64: Path, tmp_path: Path, write_zarr: Callable) -> None:
    first = Corpus.open(longcrawl64).spec.fingerprint
    moved = longcrawl64.rename(tmp_path / "elsewhere")
    assert Corpus.open(moved).spec.fingerprint == first
    shutil.rmtree(moved / "train.zarr")
    write_zarr(moved / "train.zarr", np.full((37, 1024), 5, np.uint16))
    assert Corpus.open(moved).spec.fingerprint != first


def test_longcrawl64_fingerprint_is_of_the_shape_too(tmp_path: Path, write_zarr: Callable, monkeypatch) -> None:
    """All that is read of the tokens is equal."""
    monkeypatch.setattr("data.corpus._FINGERPRINT_DOCUMENTS", 4)
    tokens = np.arange(1, 1 + 8 * 4096, dtype=np.uint16).reshape(8, 4096)
    found = set()
    for number, (train, heldout) in enumerate((((8, 4096), (6, 4096)), ((7, 4096), (6, 4096)), ((8, 4096), (5, 4096)),
                                               ((8, 3072), (6, 3072)))):  # fmt: skip
        for name, (documents, length) in (("train", train), ("heldout", heldout)):
            write_zarr(tmp_path / f"{number}" / f"{name}.zarr", tokens[:documents, :length])
        found.add(Corpus.open(tmp_path / f"{number}").spec.fingerprint)
    assert len(found) == 4
