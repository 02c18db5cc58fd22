"""The synthetic recall task: what is asked, what carries loss, and that a batch is a function of its step."""

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from data.recall import IGNORED, RecallSampler, RecallTask, heldout
from data.spec import DataSpec

TASK = RecallTask(num_keys=5, num_assignments=3, num_symbols=16)


def test_the_last_value_of_every_key_is_asked_for():
    tokens_NT, values_NKR = TASK.sequences(50, (1, 2, 3))
    assert tokens_NT.shape == (50, TASK.seq_len) == (50, 2 * 5 * 4)
    for tokens, values in zip(tokens_NT, values_NKR, strict=True):
        pairs = tokens.reshape(-1, 2).tolist()
        given: dict[int, list[int]] = {}
        for key, value in pairs[:15]:
            assert key < 16 <= value < 32
            given.setdefault(key, []).append(value)
        assert len(given) == 5 and {len(own) for own in given.values()} == {3}
        assert [(key, given[key][-1]) for key, _ in pairs[15:]] == [tuple(pair) for pair in pairs[15:]]
        assert sorted(key for key, _ in pairs[15:]) == sorted(given)
        assert values.tolist() == [given[key] for key, _ in pairs[15:]]


def test_only_the_answers_carry_loss():
    tokens_NT, values_NKR = TASK.sequences(4, (1, 0, 0))
    inputs, targets = TASK.batch(tokens_NT)
    assert torch.equal(inputs[:, 1:], torch.from_numpy(tokens_NT)[:, :-1])
    assert (inputs[:, 0] == TASK.data.bos_id).all()
    carries = targets != IGNORED
    assert (carries.sum(1) == 5).all()
    assert torch.equal(targets[carries].view(4, 5), torch.from_numpy(values_NKR[..., -1]))
    assert (inputs[carries] < 16).all(), "the query's key comes right before its answer"


def test_a_batch_is_a_function_of_seed_and_step_and_divides_among_processes():
    sampler = RecallSampler(TASK, 8, seed=3)
    whole = sampler.batch(7)
    assert all(torch.equal(a, b) for a, b in zip(whole, RecallSampler(TASK, 8, seed=3).batch(7), strict=True))
    parts = [sampler.batch(7, rank, 4) for rank in range(4)]
    assert all(torch.equal(a, torch.cat(b)) for a, b in zip(whole, zip(*parts, strict=True), strict=True))
    others = [RecallSampler(TASK, 8, seed=4).batch(7), sampler.batch(8), TASK.batch(heldout(TASK, 8)[0])]
    assert not any(torch.equal(whole[0], other[0]) for other in others)
    assert [sampler.rows(7, rank, 4)[0].tolist() for rank in (0, 3)] == [[56, 57], [62, 63]]
    with pytest.raises(ValueError, match="does not divide among 3 processes"):
        sampler.batch(0, 0, 3)


def test_a_task_is_part_of_what_a_run_is_trained_on():
    data = TASK.data
    assert (data.vocab_size, data.bos_id, data.document_len) == (33, 32, TASK.seq_len)
    adapter = TypeAdapter(DataSpec)
    assert adapter.validate_json(adapter.dump_json(data)) == data
    others = [
        RecallTask(num_keys=5, num_assignments=2, num_symbols=16),
        RecallTask(num_keys=4, num_assignments=3, num_symbols=16),
    ]
    assert len({task.data.fingerprint for task in (TASK, *others)}) == 3
    with pytest.raises(ValidationError, match="num_keys 20 exceeds num_symbols 16"):
        RecallTask(num_keys=20, num_assignments=1, num_symbols=16)


def test_every_key_is_equally_likely_at_every_place():
    tokens_NT, _ = TASK.sequences(4000, (9,))
    for place in (0, 16, 30, 38):
        counts = np.bincount(tokens_NT[:, place], minlength=16)
        assert (abs(counts - 250) < 5 * 16).all()
