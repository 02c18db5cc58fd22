"""RULER's single needles: examples of the right length and form, and scores of models that know the answer or nothing."""

import dataclasses
import re

import numpy as np
import pytest

from beyond.eval.ruler import measure
from beyond.eval.ruler.spec import TASKS, Spec
from eval.runner.text import TextCodec, heldout_texts

LENGTHS = (640, 1024)


@pytest.fixture
def codec(corpus):
    return TextCodec(corpus.tokenizer)


def examples(corpus, codec, **changes):
    spec = Spec(**{"lengths": LENGTHS, "answers": "choose"} | changes)
    return measure.Examples(spec, codec, heldout_texts(corpus))


@pytest.mark.parametrize("task", TASKS[1:])
def test_text_of_much_white_space_fills_the_named_length(corpus, codec, task):
    code = "def river(x):\n\n        return house.garden(x)  # a line.\n\n\n" * 200
    maker = measure.Examples(Spec(lengths=LENGTHS, max_new_tokens=40), codec, iter([code]))
    for length in LENGTHS:
        for number in range(4):
            spent = len(codec.encode(maker.make(task, length, number)["input"])) + 1 + 40
            assert length - 3 <= spent <= length


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("answers", ["generate", "choose"])
def test_examples_hide_one_value_in_as_many_tokens_as_asked_for(corpus, codec, task, answers):
    made = [examples(corpus, codec, answers=answers, max_new_tokens=40).make(task, 640, n) for n in range(6)]
    again = examples(corpus, codec, answers=answers, max_new_tokens=40).make(task, 640, 0)
    assert again == made[0] and len({example["input"] for example in made}) == 6
    depths = []
    for example in made:
        (value,) = example["outputs"]
        assert example["input"].count(value) == 1
        assert example["choices"][example["answer"]] == f" {value}" and len(set(example["choices"])) == 4
        pattern = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}" if task == TASKS[2] else r"\d{7}"
        assert all(re.fullmatch(f" {pattern}", choice) for choice in example["choices"])
        answer = 40 if answers == "generate" else max(len(codec.encode(choice)) for choice in example["choices"]) + 1
        spent = len(codec.encode(example["input"])) + 1 + answer
        slack = 50 if task == TASKS[0] else 3  # whole lines; what encoding leaps over
        assert 640 - slack <= spent <= 640
        depths.append(example["input"].index(value) / len(example["input"]))
        assert ("The grass is green" in example["input"]) == (task == TASKS[0])
    assert max(depths) - min(depths) > 0.2


def test_a_model_that_copies_scores_all_and_one_that_guesses_a_quarter(corpus, codec, in_memory, bind, context, monkeypatch):
    """The harness asks for log-likelihoods and texts: here they are given by looking the value up."""
    from eval.lm_eval.measure import HarnessModel

    def value_in(text):
        return re.search(r"is: ([0-9a-f-]+)\.", text).group(1)

    def likelihoods(self, requests, **unused):
        read.add(self.max_length)
        return [(0.0 if texts[1].strip() == value_in(texts[0]) else -9.0, False) for texts, _, _ in requests]

    def texts(self, requests, **unused):
        read.add(self.max_length)
        return [f" {value_in(r.args[0])} so" for r in requests]

    monkeypatch.setattr(HarnessModel, "_loglikelihood_tokens", likelihoods)
    monkeypatch.setattr(HarnessModel, "generate_until", texts)
    for answers, lengths in (("choose", LENGTHS), ("generate", LENGTHS[::-1])):
        read: set[int] = set()
        spec = bind(Spec(lengths=lengths, samples=3, answers=answers, max_new_tokens=40))
        rows = measure.evaluate(in_memory(None, codec), spec, context)
        assert len(rows) == 6 and (rows["value"] == 100).all() and set(rows["length"]) == set(LENGTHS)
        assert read == {max(LENGTHS)}, "or the longer prompts are cut"

    def guesses(self, requests, **unused):
        random = np.random.default_rng(0)
        return [(float(random.random()), False) for _ in requests]

    monkeypatch.setattr(HarnessModel, "_loglikelihood_tokens", guesses)
    rows = measure.evaluate(in_memory(None, codec), bind(Spec(lengths=(640,), samples=40, answers="choose")), context)
    assert 5 < rows["value"].mean() < 50


def test_what_does_not_fit_is_refused(codec, in_memory, bind, context):
    small, old = (bind(Spec(lengths=(length,), samples=1, tasks=TASKS[2:])) for length in (128, 640))
    for spec in (small, dataclasses.replace(old, version=1)):
        with pytest.raises(ValueError, match=r"fit into 128|plan it again"):
            measure.evaluate(in_memory(None, codec), spec, context)
