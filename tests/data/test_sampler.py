"""Order, columns, ranks and BOS, on a LongCrawl64 whose token values tell document and position (traps 2 and 4)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.corpus import Corpus
from data.sampler import Sampler, load_batch

BOS = 50256


def where(tokens: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Document and position of each token of the fake corpus."""
    document, position = np.divmod(tokens.numpy() - 1, 1024)
    return document, position


def test_every_step_of_an_epoch_reads_the_authors_documents_and_segments(longcrawl64: Path) -> None:
    corpus = Corpus.open(longcrawl64)
    sampler = Sampler(len(corpus.train), 1024, seq_len=256, batch_size=4)
    assert sampler.num_batches == 4 * 9  # 37 documents: one is dropped from the end
    seen = []
    for step in range(sampler.num_batches):
        inputs, targets = load_batch(corpus.train, sampler, step, bos_id=BOS)
        assert inputs.dtype == targets.dtype == torch.int64
        document, position = where(targets)
        column, batch = divmod(step, 9)
        assert (document == (4 * batch + np.arange(4))[:, None]).all()
        assert (position == 256 * column + np.arange(256)).all()
        seen.append(targets.flatten())
    assert len(torch.unique(torch.cat(seen))) == 36 * 1024  # every token once


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_step_of_shorter_sequences_has_the_text_of_longer_ones(longcrawl64: Path, world_size: int) -> None:
    """Cut, in order, and every sequence begins with BOS."""
    corpus = Corpus.open(longcrawl64)
    sampler = Sampler(len(corpus.train), 1024, seq_len=512, batch_size=4)
    for step in (0, 9):
        for rank in range(world_size):
            _, whole = load_batch(corpus.train, sampler, step, rank, world_size, bos_id=BOS)
            inputs, targets = load_batch(corpus.train, sampler, step, rank, world_size, bos_id=BOS, cut=128)
            assert torch.equal(targets, whole.reshape(-1, 128)) and targets.shape == (16 // world_size, 128)
            assert (inputs[:, 0] == BOS).all() and torch.equal(inputs[:, 1:], targets[:, :-1])


def test_bos_stands_in_front_and_the_first_token_is_a_target(longcrawl64: Path) -> None:
    corpus = Corpus.open(longcrawl64)
    sampler = Sampler(len(corpus.train), 1024, seq_len=256, batch_size=4)
    for step in (0, 9):  # the first column, and a later one, whose segments begin inside documents
        inputs, targets = load_batch(corpus.train, sampler, step, bos_id=BOS)
        assert (inputs[:, 0] == BOS).all()
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert targets[:, 0].tolist() == [1 + 1024 * d + 256 * (step // 9) for d in range(4)]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_take_contiguous_rows_that_together_are_the_batch(longcrawl64: Path, world_size: int) -> None:
    corpus = Corpus.open(longcrawl64)
    sampler = Sampler(len(corpus.train), 1024, seq_len=512, batch_size=4)
    for step in (0, 8, 9, 17):
        whole = load_batch(corpus.train, sampler, step, bos_id=BOS)
        parts = [load_batch(corpus.train, sampler, step, rank, world_size, bos_id=BOS) for rank in range(world_size)]
        for one, several in zip(whole, zip(*parts, strict=True), strict=True):
            assert torch.equal(one, torch.cat(several))


def test_paper_grid() -> None:
    """206,541 steps fill a column, so the longest run (92,160 steps) reads first segments of distinct documents only."""
    sampler = Sampler(6_609_334, 65_536, seq_len=16_384, batch_size=32)
    assert sampler.batches_per_column == 206_541
    assert sampler.num_batches == 4 * 206_541
    documents, start = sampler.rows(92_159)
    assert start == 0
    assert documents.tolist() == list(range(32 * 92_159, 32 * 92_160))
    assert sampler.rows(206_540)[0][-1] == 6_609_311
    assert sampler.rows(206_541)[1] == 16_384
    assert sampler.rows(206_541)[0][0] == 0
    assert sampler.rows(5, rank=3, world_size=8)[0].tolist() == [172, 173, 174, 175]


def test_a_seed_changes_the_order_and_neither_what_is_read_nor_the_share_of_a_rank() -> None:
    read = {}
    for seed in (0, 1, 2):
        sampler = Sampler(24, 64, seq_len=16, batch_size=4, seed=seed)
        rows = [sampler.rows(step) for step in range(sampler.num_batches)]
        read[seed] = [(document, start) for documents, start in rows for document in documents.tolist()]
        parts = [sampler.rows(3, rank, 2)[0].tolist() for rank in (0, 1)]
        assert [*parts[0], *parts[1]] == rows[3][0].tolist()
    assert sorted(read[0]) == sorted(read[1]) == sorted(read[2]) and len(set(map(tuple, read.values()))) == 3


def test_order_repeats_after_the_last_batch_and_epochs_tell() -> None:
    sampler = Sampler(10, 64, seq_len=30, batch_size=3)  # 4 tokens of each document and one document are never read
    assert sampler.num_batches == 6
    assert sampler.rows(6)[0].tolist() == sampler.rows(0)[0].tolist() == [0, 1, 2]
    assert sampler.rows(6)[1] == 0
    assert sampler.epochs(9) == 1.5


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 64), st.integers(1, 20), st.integers(0, 5000))
def test_rows_stay_inside_the_corpus(documents: int, document_len: int, seq_len: int, batch_size: int, step: int) -> None:
    if seq_len > document_len or documents < batch_size:
        with pytest.raises(ValueError, match=r"documents"):
            Sampler(documents, document_len, seq_len, batch_size)
        return
    rows, start = Sampler(documents, document_len, seq_len, batch_size).rows(step)
    assert rows.max() < documents
    assert start + seq_len <= document_len


def test_batch_that_does_not_divide_among_processes() -> None:
    with pytest.raises(ValueError, match=r"batch of 32 .* 5 processes"):
        Sampler(64, 64, 64, 32).rows(0, 0, 5)


def test_corpus_too_small_or_too_short() -> None:
    with pytest.raises(ValueError, match=r"seq_len 128 is longer .* 64 tokens"):
        Sampler(64, 64, 128, 32)
    with pytest.raises(ValueError, match=r"has 31 documents .* one batch of 32"):
        Sampler(31, 64, 64, 32)
