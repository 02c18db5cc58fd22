"""Recall and equal logits: a model that answers, one that answers late, and the weights of every kind of attention."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data.recall import RecallTask
from data.spec import DataSpec
from eval.equal_logits import measure as weights
from eval.equal_logits.spec import Spec as EqualLogits
from eval.recall import measure
from eval.recall.spec import Spec as Recall
from eval.runner.context import Context
from eval.runner.sources import Sources
from eval.runner.spec import Setting
from models.build import build_model
from models.mamba2.spec import Mamba2Spec
from training.spec import TrainSpec

TASK = RecallTask(num_keys=4, num_assignments=3, num_queries=2, num_symbols=8)
DATA = DataSpec.of_recall(TASK)


class Reader:
    """Looks back for the last (or first) value that the key at hand was given, as a model would."""

    def __init__(self, last: bool):
        self.last = last

    def __call__(self, input_ids, use_cache):
        logits = torch.zeros(*input_ids.shape, DATA.vocab_size)
        for row, sequence in enumerate(input_ids.tolist()):
            for place, key in enumerate(sequence):
                earlier = [i for i in range(1, place - 1, 2) if place % 2 and sequence[i] == key]
                if earlier:
                    logits[row, place, sequence[earlier[-1 if self.last else 0] + 1]] = 1.0
        return SimpleNamespace(logits=logits)


@pytest.fixture
def run(make_spec, tiny_fox):
    """A run on the task."""
    length = DATA.document_len
    train = TrainSpec(seq_len=length, batch_tokens=length, train_tokens=10 * length, warmup_tokens=0, peak_lr=1e-3)
    return make_spec(tiny_fox(DATA.vocab_size), data=DATA, train=train)


def loaded(run, model):
    return SimpleNamespace(subject=SimpleNamespace(run=run, model="fox_pro"), model=model, fresh=lambda: model)


def test_answers_are_counted(run, monkeypatch):
    """In batches of some sequences, the last of fewer."""
    monkeypatch.setattr(measure, "BATCH_TOKENS", 7 * TASK.seq_len)
    spec = Recall(num_sequences=50).bound(Setting(DATA, Sources(), "fp32", "cpu"))
    assert (spec.seq_len, spec.corpus) == (TASK.seq_len, DATA.fingerprint)
    rows = Recall.SCHEMA.validate(measure.evaluate(loaded(run, Reader(last=True)), spec, Context()))
    assert (rows["num_correct"] == 8).all() and (rows["num_stale"] == 0).all() and (rows["num_queries"] == 8).all()
    rows = measure.evaluate(loaded(run, Reader(last=False)), spec, Context())
    assert 0.2 < rows["num_correct"].sum() / 400 < 0.7, "of keys that were assigned once, and by chance"
    assert (rows["num_stale"] == 8 - rows["num_correct"]).all() and len(rows) == 50


def test_only_runs_of_the_task_are_asked(run, make_spec, bind):
    Recall().check(run, None)
    for asked in (
        lambda: Recall().check(make_spec(), None),
        lambda: measure.evaluate(loaded(run, None), bind(Recall()), None),
    ):
        with pytest.raises(ValueError, match="trained on"):
            asked()


@pytest.mark.parametrize("kind", ["stick_breaking", "softmax", "alibi"])
def test_weights_of_equal_logits(tiny_fox, kind):
    changes = {
        "stick_breaking": dict(attention="stick_breaking", forget_gate="none"),
        "softmax": dict(forget_gate="none", use_rope=True),
        "alibi": dict(forget_gate="fixed", decay_time_min=16.0, decay_time_max=256.0),
    }[kind]
    rows = weights.evaluate(loaded(None, build_model(tiny_fox(**changes)).eval()), EqualLogits(), Context())
    by_head = EqualLogits.SCHEMA.validate(rows).pivot(index="head", columns="distance", values="weight").to_numpy()
    distance = np.arange(32)
    if kind == "stick_breaking":
        expected = np.append(0.0, 0.5 ** distance[1:])[None]
    elif kind == "softmax":
        expected = np.full((1, 32), 1 / 32)
    else:
        expected = np.exp(-distance / np.array([[16.0], [256.0]]))
        expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(by_head, np.broadcast_to(expected, by_head.shape), atol=1e-6)


def test_equal_logits_need_attention(make_spec):
    mamba = Mamba2Spec(vocab_size=512, hidden_size=64, num_layers=1, head_dim=32)
    for asked in (
        lambda: EqualLogits().check(make_spec(mamba), None),
        lambda: weights.evaluate(loaded(None, build_model(mamba)), EqualLogits(), Context()),
    ):
        with pytest.raises(ValueError, match="not an attention model"):
            asked()
