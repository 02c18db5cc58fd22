"""Multi-query repeated associative recall (MQAR with keys that are assigned again; arXiv 2410.17980), made as it is read.

    a 7  b 2  a 5  c 1  b 9  ...      c 1  a 5  b 9
    assignments, in random order      queries: each key once, followed by the value that it was given last

Only the values of the queries carry loss. Train batches are a function of (task, seed, step): nothing is
stored, and no sequence is seen twice.
"""

import hashlib
import json
from dataclasses import dataclass as plain_dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from data.sampler import bos_roll, share_of
from models.spec_parts import STRICT, PositiveInt

if TYPE_CHECKING:
    import torch

    from data.spec import DataSpec

FORMAT = 1
IGNORED = -100
"""A target that carries no loss."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RecallTask:
    """`num_keys` keys of `num_symbols`, each assigned `num_assignments` times; values are `num_symbols` others."""

    num_keys: PositiveInt
    num_assignments: PositiveInt
    num_symbols: PositiveInt

    @model_validator(mode="after")
    def _check(self) -> "RecallTask":
        if self.num_keys > self.num_symbols:
            raise ValueError(f"num_keys {self.num_keys} exceeds num_symbols {self.num_symbols}, of which they are drawn")
        return self

    @property
    def seq_len(self) -> int:
        return 2 * self.num_keys * (self.num_assignments + 1)

    @property
    def data(self) -> "DataSpec":
        """The task as what a run is trained on."""
        from data.spec import DataSpec

        identity = ["recall", FORMAT, self.num_keys, self.num_assignments, self.num_symbols]
        return DataSpec(
            source="recall",
            tokenizer="symbols",
            vocab_size=2 * self.num_symbols + 1,
            bos_id=2 * self.num_symbols,
            document_len=self.seq_len,
            fingerprint=hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16],
            recall=self,
        )

    def sequences(self, count: int, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens (count, seq_len), and of every query the key's values in the order of their assignment (count, num_keys,
        num_assignments): the last is the answer."""
        random = np.random.default_rng(seed)

        def shuffled(row: np.ndarray) -> np.ndarray:
            return random.permuted(np.tile(row, (count, 1)), axis=1)

        names_NK = shuffled(np.arange(self.num_symbols))[:, : self.num_keys]
        assigned_NA = shuffled(np.repeat(np.arange(self.num_keys), self.num_assignments))
        values_NA = random.integers(self.num_symbols, 2 * self.num_symbols, assigned_NA.shape)
        asked_NK = shuffled(np.arange(self.num_keys))
        in_turn_NA = np.take_along_axis(values_NA, np.argsort(assigned_NA, axis=1, kind="stable"), axis=1)
        values_NKR = in_turn_NA.reshape(count, self.num_keys, self.num_assignments)[np.arange(count)[:, None], asked_NK]
        keys = np.concatenate([np.take_along_axis(names_NK, which, axis=1) for which in (assigned_NA, asked_NK)], axis=1)
        values = np.concatenate([values_NA, values_NKR[..., -1]], axis=1)
        return np.stack([keys, values], axis=-1).reshape(count, self.seq_len), values_NKR

    def batch(self, tokens_NT: np.ndarray) -> tuple["torch.Tensor", "torch.Tensor"]:
        """(inputs, targets) as `load_batch` gives them; targets are IGNORED but for the values of the queries."""
        inputs, targets = bos_roll(tokens_NT, self.data.bos_id)
        ignored = targets.new_full(targets.shape, IGNORED)
        queries = slice(-2 * self.num_keys + 1, None, 2)
        ignored[:, queries] = targets[:, queries]
        return inputs, ignored


@plain_dataclass(frozen=True)
class RecallSampler:
    """Which sequences step s trains on: a pure function of (seed, step, rank, world size), as `Sampler` is of text."""

    task: RecallTask
    batch_size: int
    seed: int

    def epochs(self, num_steps: int) -> float:
        """No sequence comes again."""
        return 0.0

    def rows(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[np.ndarray, int]:
        """Numbers of this rank's sequences, counted from the first step on, and 0."""
        share = share_of(self.batch_size, rank, world_size)
        return step * self.batch_size + np.arange(self.batch_size)[share], 0

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> tuple["torch.Tensor", "torch.Tensor"]:
        """(inputs, targets) of one step, int64 of shape (batch_size / world_size, seq_len)."""
        tokens, _ = self.task.sequences(self.batch_size, (1, self.seed, step))
        return self.task.batch(tokens[share_of(self.batch_size, rank, world_size)])


def heldout(task: RecallTask, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences that no training sees; see `RecallTask.sequences`."""
    return task.sequences(count, (0,))
