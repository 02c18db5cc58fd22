"""Order, columns, ranks and BOS, on a LongCrawl64 whose token values tell document and position (traps 2 and 4)."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.corpus import Corpus
from data.sampler import Sampler, load_batch

BOS = 50256


def test_every_step_of_an_epoch_reads_the_authors_documents_and_segments(longcrawl64):
    """Every token is a target once, the first of a segment behind BOS."""
    corpus, seen = Corpus.open(longcrawl64), []
    sampler = Sampler(len(corpus.train), 1024, seq_len=256, batch_size=4)
    assert sampler.num_batches == 4 * 9  # 37 documents: one is dropped from the end
    for step in range(sampler.num_batches):
        inputs, targets = load_batch(corpus.train, sampler, step, bos_id=BOS)
        assert inputs.dtype == targets.dtype == torch.int64
        assert (inputs[:, 0] == BOS).all() and torch.equal(inputs[:, 1:], targets[:, :-1])
        document, position = np.divmod(targets.numpy() - 1, 1024)
        column, batch = divmod(step, 9)
        assert (document == (4 * batch + np.arange(4))[:, None]).all()
        assert (position == 256 * column + np.arange(256)).all()
        seen.append(targets.flatten())
    assert len(torch.unique(torch.cat(seen))) == 36 * 1024


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_take_contiguous_rows_that_together_are_the_batch(longcrawl64, world_size, seed):
    """So they do of shorter sequences, which have the text of the longer ones, each behind BOS."""
    corpus = Corpus.open(longcrawl64)
    sampler = Sampler(len(corpus.train), 1024, seq_len=512, batch_size=4, seed=seed)
    for step in (0, 8, 9, 17):
        whole = load_batch(corpus.train, sampler, step, bos_id=BOS)
        parts = [load_batch(corpus.train, sampler, step, rank, world_size, bos_id=BOS) for rank in range(world_size)]
        cut = [load_batch(corpus.train, sampler, step, rank, world_size, bos_id=BOS, cut=128) for rank in range(world_size)]
        assert all(torch.equal(one, torch.cat(several)) for one, several in zip(whole, zip(*parts, strict=True), strict=True))
        inputs, targets = (torch.cat(several) for several in zip(*cut, strict=True))
        assert torch.equal(targets, whole[1].reshape(-1, 128))
        assert (inputs[:, 0] == BOS).all() and torch.equal(inputs[:, 1:], targets[:, :-1])


def test_a_seed_changes_the_order_and_not_what_is_read():
    read = []
    for seed in (0, 1, 2, 1):
        sampler = Sampler(24, 64, seq_len=16, batch_size=4, seed=seed)
        rows = [sampler.rows(step) for step in range(sampler.num_batches)]
        read.append([(document, start) for documents, start in rows for document in documents.tolist()])
    assert sorted(read[0]) == sorted(read[1]) == sorted(read[2]) and len(set(map(tuple, read))) == 3
    assert len(set(read[0])) == len(read[0]) == 24 * 4


def test_paper_grid():
    """206,541 steps fill a column, so the longest run (92,160 steps) reads first segments of distinct documents only."""
    sampler = Sampler(6_609_334, 65_536, seq_len=16_384, batch_size=32)
    assert (sampler.batches_per_column, sampler.num_batches) == (206_541, 4 * 206_541)
    documents, start = sampler.rows(92_159)
    assert start == 0 and documents.tolist() == list(range(32 * 92_159, 32 * 92_160))
    (last, _), (first, start) = sampler.rows(206_540), sampler.rows(206_541)
    assert (last[-1], first[0], start) == (6_609_311, 0, 16_384)
    assert sampler.rows(5, rank=3, world_size=8)[0].tolist() == [172, 173, 174, 175]


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 64), st.integers(1, 20), st.integers(0, 5000), st.integers(0, 2))
def test_rows_stay_inside_the_corpus(documents, document_len, seq_len, batch_size, step, seed):
    """And repeat after the last batch, which epochs tell."""
    if seq_len > document_len or documents < batch_size:
        with pytest.raises(ValueError, match=r"documents"):
            Sampler(documents, document_len, seq_len, batch_size)
        return
    sampler = Sampler(documents, document_len, seq_len, batch_size, seed)
    rows, start = sampler.rows(step)
    assert rows.max() < documents and len(set(rows)) == batch_size and start + seq_len <= document_len
    again, same = sampler.rows(step + sampler.num_batches)
    assert (again == rows).all() and same == start
    assert sampler.epochs(step + sampler.num_batches) == pytest.approx(1 + sampler.epochs(step))
    with pytest.raises(ValueError, match="does not divide among"):
        sampler.rows(step, 0, batch_size + 1)
