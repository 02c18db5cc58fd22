"""Multi-query repeated associative recall (MQAR with keys that are assigned again; arXiv 2410.17980), generated on the fly.

    a 7  b 2  a 7* b 9  a 5  b 9* a 5* ...

A pair assigns a value to a key or, if starred, queries the key's latest value. Only the values of queries carry loss. Plain
MQAR (Zoology, arXiv 2312.04927) has its own layout, `pairs_first`: all pairs, then one query of each key among blanks (-).

    a 7  b 2  d 9  - -  d 9*  - -  - -  a 7*  b 2*  - - ...

Train batches are a function of (task, seed, step): nothing is stored, and no sequence is seen twice."""

from dataclasses import dataclass as plain_dataclass
from typing import TYPE_CHECKING

import numpy as np

from data.sampler import bos_roll, share_of
from models.spec_parts import PositiveInt, strict

if TYPE_CHECKING:
    import torch

FORMAT = 1
IGNORED = -100  # a target that carries no loss
SLOTS_PER_KEY = 4  # pairs of tokens per key with `pairs_first`: Zoology's longest sequences have 512 tokens for 64 keys
POWER = 0.01  # with `pairs_first`, the probability of a query at place s is proportional to s^(POWER - 1)


@strict
class RecallTask:
    """Recall task with `num_keys` keys, drawn from `num_symbols` symbols.

    Each key is assigned a value `num_assignments` times, drawn from `num_symbols` other symbols, and queried `num_queries`
    times for its latest value. Pairs come in random order, except that the first pair of a key is an assignment.
    `pairs_first`: Zoology's layout instead, with one assignment and one query per key. Its values are distinct; the places of
    its queries are drawn without replacement from the 3 * `num_keys` after the pairs, near ones being far likelier; the
    inputs never show an answer."""

    num_keys: PositiveInt
    num_assignments: PositiveInt
    num_queries: PositiveInt
    num_symbols: PositiveInt
    pairs_first: bool = False

    def __post_init__(self) -> None:
        if self.num_keys > self.num_symbols:
            raise ValueError(f"num_keys {self.num_keys} exceeds num_symbols {self.num_symbols}, from which keys are drawn")
        if self.pairs_first and self.times != 2:
            times = f"{self.num_assignments} and {self.num_queries} times"
            raise ValueError(f"pairs_first assigns and queries each key once, not {times}")

    @property
    def times(self) -> int:
        """Occurrences of each key."""
        return self.num_assignments + self.num_queries

    @property
    def seq_len(self) -> int:
        return 2 * self.num_keys * (SLOTS_PER_KEY if self.pairs_first else self.times)

    @property
    def blank(self) -> int:
        """Id of BOS and of blanks, the first after the ids of keys and values."""
        return 2 * self.num_symbols

    def sequences(self, count: int, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Draw N = `count` sequences: tokens (N, seq_len), alternately key and value, and a query mask (N, seq_len / 2)."""
        random = np.random.default_rng(seed)
        return self._pairs_first(count, random) if self.pairs_first else self._mixed(count, random)

    def _pairs_first(self, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        names_NK, values_NK = (_shuffled(random, np.arange(self.num_symbols), count)[:, : self.num_keys] for _ in range(2))
        pairs_NK2 = np.stack([names_NK, values_NK + self.num_symbols], axis=-1)
        # Gumbel top-k: the largest noisy log-probabilities are a sample without replacement, in the order of drawing.
        places = (SLOTS_PER_KEY - 1) * self.num_keys
        chance = (POWER - 1) * np.log(np.arange(1, places + 1)) + random.gumbel(size=(count, places))
        slots_NK = self.num_keys + np.argsort(-chance, axis=1)[:, : self.num_keys]
        tokens_NP2 = np.full((count, self.seq_len // 2, 2), self.blank)
        tokens_NP2[:, : self.num_keys] = pairs_NK2
        np.put_along_axis(tokens_NP2, slots_NK[..., None], pairs_NK2, axis=1)
        queries_NP = np.zeros((count, self.seq_len // 2), bool)
        np.put_along_axis(queries_NP, slots_NK, True, axis=1)
        return tokens_NP2.reshape(count, self.seq_len), queries_NP

    def _mixed(self, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        # For each key (K) and occurrence (R): is it an assignment or a query, and the key's value from then on.
        roles = np.repeat([True, False], [self.num_assignments - 1, self.num_queries])
        assigned_NKR = np.pad(_shuffled(random, roles, count, self.num_keys), ((0, 0), (0, 0), (1, 0)), constant_values=True)
        last_NKR = np.maximum.accumulate(np.where(assigned_NKR, np.arange(self.times), 0), axis=2)
        drawn_NKR = random.integers(self.num_symbols, 2 * self.num_symbols, assigned_NKR.shape)
        values_NKR = np.take_along_axis(drawn_NKR, last_NKR, axis=2)
        # The pairs (P) in random order; the occurrences of one key keep theirs.
        which_NP = _shuffled(random, np.repeat(np.arange(self.num_keys), self.times), count)
        places_NP = np.argsort(which_NP, axis=1, kind="stable")
        names_NK = _shuffled(random, np.arange(self.num_symbols), count)[:, : self.num_keys]
        values_NP, queries_NP = np.empty_like(which_NP), np.empty(which_NP.shape, bool)
        np.put_along_axis(values_NP, places_NP, values_NKR.reshape(count, -1), axis=1)
        np.put_along_axis(queries_NP, places_NP, ~assigned_NKR.reshape(count, -1), axis=1)
        tokens_NP2 = np.stack([np.take_along_axis(names_NK, which_NP, axis=1), values_NP], axis=-1)
        return tokens_NP2.reshape(count, self.seq_len), queries_NP

    def batch(self, tokens_NT: np.ndarray, queries_NP: np.ndarray) -> tuple["torch.Tensor", "torch.Tensor"]:
        """Return (inputs, targets) like `load_batch`; all targets except the values of queries are IGNORED."""
        import torch

        inputs, targets = bos_roll(tokens_NT, self.blank)
        answers = torch.zeros(targets.shape, dtype=torch.bool)
        answers[:, 1::2] = torch.from_numpy(queries_NP)
        if self.pairs_first:
            inputs[:, 1:].masked_fill_(answers[:, :-1], self.blank)
        return inputs, targets.masked_fill(~answers, IGNORED)


def _shuffled(random: np.random.Generator, row: np.ndarray, *shape: int) -> np.ndarray:
    return random.permuted(np.broadcast_to(row, (*shape, len(row))), axis=-1)


@plain_dataclass(frozen=True)
class RecallSampler:
    """Sampler of a recall task: the sequences of a step are a pure function of (seed, step, rank, world size)."""

    task: RecallTask
    batch_size: int
    seed: int

    def epochs(self, num_steps: int) -> float:
        """Return 0: no sequence is repeated."""
        return 0.0

    def rows(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[np.ndarray, int]:
        """Return the indices of this rank's sequences, counted from the first step on, and 0, their first token."""
        share = share_of(self.batch_size, rank, world_size)
        return step * self.batch_size + np.arange(self.batch_size)[share], 0

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> tuple["torch.Tensor", "torch.Tensor"]:
        """Return (inputs, targets) of one step, int64 of shape (batch_size / world_size, seq_len)."""
        share = share_of(self.batch_size, rank, world_size)
        return self.task.batch(*(x[share] for x in self.task.sequences(self.batch_size, (1, self.seed, step))))


def heldout(task: RecallTask, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw held-out sequences, which no run trains on; see `RecallTask.sequences`."""
    return task.sequences(count, (0,))
