"""Tokens that step s trains on: a pure function of (seed, step, rank, world size), by default in the authors' order."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from data.split import Split


@dataclass(frozen=True)
class Sampler:
    """Order of LongCrawl64 training (section 1.2 of the released setup): no shuffling, no state. A `seed`
    above 0 permutes the documents, once for all columns.

    The corpus is a grid: a row per document, a column per consecutive segment of `seq_len` tokens. Incomplete segments and
    batches are never read. With n = documents // batch_size (global, in sequences), step s reads column s // n of the
    documents from batch_size * (s % n) on: all first segments are read before any second one. The order repeats after
    `num_batches` steps, which the paper's runs never reach."""

    num_documents: int
    document_len: int
    seq_len: int
    batch_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seq_len < 1 or self.batch_size < 1:
            raise ValueError(f"seq_len {self.seq_len} and batch_size {self.batch_size} must be positive")
        if self.seq_len > self.document_len:
            raise ValueError(f"seq_len {self.seq_len} is longer than documents of {self.document_len} tokens: shorten it")
        if self.num_documents < self.batch_size:
            what = f"the corpus has {self.num_documents} documents of {self.document_len} tokens, fewer than one batch"
            raise ValueError(f"{what} of {self.batch_size}: give more text, shorter documents or a smaller batch")

    @cached_property
    def documents(self) -> np.ndarray:
        """Documents in the order in which they are read."""
        stored = np.arange(self.num_documents)
        return np.random.default_rng(self.seed).permutation(stored) if self.seed else stored

    @property
    def batches_per_column(self) -> int:
        return self.num_documents // self.batch_size

    @property
    def num_batches(self) -> int:
        """Steps until the order repeats."""
        return self.batches_per_column * (self.document_len // self.seq_len)

    def epochs(self, num_steps: int) -> float:
        """Return the passes through the data in `num_steps` steps; above 1, sequences are repeated."""
        return num_steps / self.num_batches

    def rows(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[np.ndarray, int]:
        """Return document indices of this rank (contiguous places in the global batch) and the first token of their segment."""
        assert step >= 0
        column, batch = divmod(step % self.num_batches, self.batches_per_column)
        share = share_of(self.batch_size, rank, world_size)
        first = batch * self.batch_size
        return self.documents[first : first + self.batch_size][share], column * self.seq_len


def share_of(batch_size: int, rank: int, world_size: int) -> slice:
    """Return the slice of a batch that belongs to process `rank`. ValueError if the batch does not divide evenly."""
    if batch_size % world_size:
        what = f"a batch of {batch_size} does not divide among {world_size} processes"
        raise ValueError(f"{what}: start a number that divides it")
    assert 0 <= rank < world_size
    share = batch_size // world_size
    return slice(rank * share, (rank + 1) * share)


def load_batch(
    split: "Split", sampler: Sampler, step: int, rank: int = 0, world_size: int = 1, *, bos_id: int, cut: int | None = None
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Return (inputs, targets) of one step, int64 of shape (batch_size / world_size, seq_len): `bos_roll` of the stored tokens.
    `cut`: sequences are cut into shorter ones of this many tokens. All positions carry loss, and the model must not shift the
    targets again."""
    documents, start = sampler.rows(step, rank, world_size)
    tokens_BT = split.read(documents, start, start + sampler.seq_len)
    return bos_roll(tokens_BT.reshape(-1, cut or sampler.seq_len), bos_id)


def bos_roll(tokens_BT: np.ndarray, bos_id: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Turn stored tokens into (inputs, targets): int64 tensors of the same shape, inputs shifted right by one after BOS."""
    import torch

    targets_BT = torch.from_numpy(tokens_BT.astype(np.int64))
    inputs_BT = torch.roll(targets_BT, 1, dims=1)
    inputs_BT[:, 0] = bos_id
    return inputs_BT, targets_BT
