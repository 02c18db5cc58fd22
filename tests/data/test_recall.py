"""The synthetic recall task: what is asked, what carries loss, and that a batch is a function of its step."""

import dataclasses

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from data.recall import IGNORED, RecallSampler, RecallTask, heldout
from data.spec import DataSpec

TASK = RecallTask(num_keys=5, num_assignments=3, num_queries=2, num_symbols=16)
ZOOLOGY = RecallTask(num_keys=5, num_assignments=1, num_queries=1, num_symbols=16, pairs_first=True)


def test_the_last_value_of_a_key_is_asked_for():
    tokens_NT, queries_NP = TASK.sequences(200, (1, 2, 3))
    assert tokens_NT.shape == (200, TASK.seq_len) == (200, 2 * 5 * 5)
    repeated = 0
    for tokens, queries in zip(tokens_NT, queries_NP, strict=True):
        given: dict[int, list[int]] = {}
        asked: dict[int, int] = {}
        for (key, value), query in zip(tokens.reshape(-1, 2).tolist(), queries, strict=True):
            assert key < 16 <= value < 32
            if query:
                asked[key] = asked.get(key, 0) + 1
                assert value == given[key][-1]
                repeated += len(given[key]) > 1
            else:
                given.setdefault(key, []).append(value)
        assert [len(own) for own in given.values()] == [3] * 5 and list(asked.values()) == [2] * 5
    assert 0.4 < repeated / queries_NP.sum() < 0.9, "many keys have been assigned again by then"
    counts = [np.bincount(TASK.sequences(4000, (9,))[0][:, place], minlength=16) for place in (0, 16, 30, 48)]
    assert (abs(np.array(counts) - 250) < 5 * 16).all(), "every key is equally likely at every place"


def test_pairs_come_first_then_each_key_once_among_blanks():
    tokens_NT, queries_NP = ZOOLOGY.sequences(2000, (1, 2, 3))
    assert tokens_NT.shape == (2000, ZOOLOGY.seq_len) == (2000, 2 * 5 * 4)
    pairs_NP2 = tokens_NT.reshape(2000, 20, 2)
    assert not queries_NP[:, :5].any() and (queries_NP.sum(1) == 5).all()
    for pairs, queries in zip(pairs_NP2, queries_NP, strict=True):
        given = dict(pairs[:5].tolist())
        assert len(given) == len(set(given.values())) == 5, "keys and values are each drawn without replacement"
        assert all(key < 16 <= value < 32 for key, value in given.items())
        assert dict(pairs[queries].tolist()) == given
        assert (pairs[5:][~queries[5:]] == ZOOLOGY.blank).all()
    # Places go by a power law: the first-drawn query, that of the first key, stands at s with probability ~ 1 / s^0.99.
    first_N = (pairs_NP2[:, 5:, 0] == pairs_NP2[:, :1, 0]).argmax(1)
    expected = np.arange(1, 16) ** -0.99
    np.testing.assert_allclose(np.bincount(first_N, minlength=15) / 2000, expected / expected.sum(), atol=0.04)


@pytest.mark.parametrize("task", [TASK, ZOOLOGY])
def test_only_the_answers_carry_loss(task):
    """Each is asked for at its key; Zoology's inputs show none."""
    tokens_NT, queries_NP = task.sequences(4, (1, 0, 0))
    inputs, targets = task.batch(tokens_NT, queries_NP)
    carries = targets != IGNORED
    assert torch.equal(targets[carries], torch.from_numpy(tokens_NT[:, 1::2][queries_NP]))
    assert (inputs[carries] < 16).all() and (inputs[:, 0] == DataSpec.of_recall(task).bos_id).all()
    hidden = torch.zeros_like(carries)
    if task is ZOOLOGY:
        hidden[:, 1:] = carries[:, :-1]
        assert (inputs[hidden] == task.blank).all()
    shown = torch.from_numpy(tokens_NT)[:, :-1]
    assert torch.equal(inputs[:, 1:][~hidden[:, 1:]], shown[~hidden[:, 1:]])


def test_a_batch_is_a_function_of_seed_and_step_and_divides_among_processes():
    sampler = RecallSampler(TASK, 8, seed=3)
    whole = sampler.batch(7)
    assert all(torch.equal(a, b) for a, b in zip(whole, RecallSampler(TASK, 8, seed=3).batch(7), strict=True))
    parts = [sampler.batch(7, rank, 4) for rank in range(4)]
    assert all(torch.equal(a, torch.cat(b)) for a, b in zip(whole, zip(*parts, strict=True), strict=True))
    held = TASK.batch(*heldout(TASK, 8))[0]
    others = [RecallSampler(TASK, 8, seed=4).batch(7)[0], sampler.batch(8)[0], held]
    assert not any(torch.equal(whole[0], other) for other in others)
    trained = [RecallSampler(TASK, 8, seed=seed).batch(step)[0] for seed in (0, 1) for step in range(3)]
    assert not any(torch.equal(held, other) for other in trained)
    assert [sampler.rows(7, rank, 4)[0].tolist() for rank in (0, 3)] == [[56, 57], [62, 63]]


def test_a_task_is_part_of_what_a_run_is_trained_on():
    data, adapter = DataSpec.of_recall(TASK), TypeAdapter(DataSpec)
    assert (data.vocab_size, data.bos_id, data.document_len) == (33, 32, TASK.seq_len)
    assert adapter.validate_json(adapter.dump_json(data)) == data
    changes = {"num_keys": 4, "num_assignments": 2, "num_queries": 3, "num_symbols": 17}
    others = [dataclasses.replace(TASK, **{name: value}) for name, value in changes.items()]
    mixed = dataclasses.replace(ZOOLOGY, pairs_first=False)
    assert len({DataSpec.of_recall(task).fingerprint for task in (TASK, *others, ZOOLOGY, mixed)}) == 7
    assert DataSpec.of_recall(mixed).fingerprint == "4968ae6df1aae712", "of runs that are stored"
