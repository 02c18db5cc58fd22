"""Recall and equal logits: a model that answers, one that answers late, and the weights of every kind of attention."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data.recall import RecallTask
from data.spec import DataSpec
from eval.equal_logits import measure as weights
from eval.equal_logits import spec as equal_logits
from eval.recall import measure
from eval.recall import spec as recall
from eval.shell.context import Context
from eval.shell.sources import Sources
from eval.shell.spec import Setting
from models.build import build_model
from training.spec import RunSpec

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


def loaded(make_spec, model):
    run = make_spec(data=DATA)
    subject = SimpleNamespace(run=run, model="fox_pro")
    return SimpleNamespace(subject=subject, model=model, fresh=lambda: model)


@pytest.fixture
def make_spec(tiny_fox):
    def make(data):
        from training.spec import TrainSpec

        length = data.document_len
        train = TrainSpec(seq_len=length, batch_tokens=length, train_tokens=10 * length, warmup_tokens=0, peak_lr=1e-3)
        return RunSpec(name="fox_pro", scale="tiny", model=tiny_fox(data.vocab_size), data=data, train=train)

    return make


def test_answers_are_counted(make_spec):
    spec = recall.Spec(num_sequences=50).bound(Setting(DATA, Sources(), "fp32", "cpu"))
    assert (spec.seq_len, spec.corpus) == (TASK.seq_len, DATA.fingerprint)
    rows = measure.evaluate(loaded(make_spec, Reader(last=True)), spec, Context())
    recall.Spec.SCHEMA.validate(rows)
    assert (rows["num_correct"] == 8).all() and (rows["num_stale"] == 0).all() and (rows["num_queries"] == 8).all()
    rows = measure.evaluate(loaded(make_spec, Reader(last=False)), spec, Context())
    assert 0.2 < rows["num_correct"].sum() / 400 < 0.7, "of keys that were assigned once, and by chance"
    assert (rows["num_stale"] == 8 - rows["num_correct"]).all()
    assert "of 400 queries answered" in spec.summary(rows)[0]


def test_only_runs_of_the_task_are_asked(make_spec, corpus, tiny_fox, bind):
    run = make_spec(DATA)
    text = SimpleNamespace(name="fox_pro", data=corpus.spec)
    recall.Spec().check(run, None)
    with pytest.raises(ValueError, match="fox_pro was trained on text"):
        recall.Spec().check(text, None)
    with pytest.raises(ValueError, match="which fox_pro was not trained on"):
        measure.evaluate(loaded(make_spec, Reader(last=True)), bind(recall.Spec()), Context())


@pytest.mark.parametrize("kind", ["stick_breaking", "softmax", "alibi"])
def test_weights_of_equal_logits(tiny_fox, kind):
    changes = {
        "stick_breaking": dict(attention="stick_breaking", forget_gate="none"),
        "softmax": dict(forget_gate="none", use_rope=True),
        "alibi": dict(forget_gate="fixed", decay_time_min=16.0, decay_time_max=256.0),
    }[kind]
    model = build_model(tiny_fox(**changes)).eval()
    subject = SimpleNamespace(run=None, model=kind)
    rows = weights.evaluate(SimpleNamespace(subject=subject, fresh=lambda: model), equal_logits.Spec(), Context())
    equal_logits.Spec.SCHEMA.validate(rows)
    by_head = rows.pivot(index="head", columns="distance", values="weight").to_numpy()
    distance = np.arange(32)
    if kind == "stick_breaking":
        expected = np.append(0.0, 0.5 ** distance[1:])[None]
    elif kind == "softmax":
        expected = np.full((1, 32), 1 / 32)
    else:
        expected = np.exp(-distance / np.array([[16.0], [256.0]]))
        expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(by_head, np.broadcast_to(expected, by_head.shape), atol=1e-6)


def test_equal_logits_need_attention():
    run = SimpleNamespace(name="mamba2", model=SimpleNamespace(kind="mamba2"))
    with pytest.raises(ValueError, match="mamba2 is not an attention model"):
        equal_logits.Spec().check(run, None)
