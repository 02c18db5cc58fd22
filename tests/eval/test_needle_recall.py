"""Needles by log-probability, as recall in nats and as a choice: against plain log-probabilities, and a model that copies."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from data.tokenizer import parse_tokenizer
from eval.needle.wording import Choices, read_facts
from eval.needle_choice import measure as choice
from eval.needle_choice.spec import OFFERED
from eval.needle_choice.spec import Spec as Choice
from eval.needle_recall import measure as recall
from eval.needle_recall.spec import Spec as Recall
from eval.runner.context import Context
from eval.runner.text import TextCodec
from tests.eval.oracles import Copying, Uniform, llama, logp

FACTS = read_facts()
GRID = dict(lengths=(200, 330), depths=(0.0, 50.0, 100.0), samples_per_cell=3, reserve=80)


@pytest.fixture
def codec(corpus) -> TextCodec:
    return TextCodec(corpus.tokenizer)


def test_the_sentences_have_answers_of_their_own():
    assert len({fact.needle for fact in FACTS}) == len({fact.expected for fact in FACTS}) == len(FACTS) >= 16
    for fact in FACTS:
        assert fact.needle == f"{fact.answer_start} {fact.expected}" and fact.expected not in fact.query
        assert fact.query == f"\n\n{fact.question} Answer: {fact.answer_start}"


@pytest.mark.parametrize("mode", ["easy", "standard"])
def test_a_model_that_copies_recalls_and_chooses_every_needle(mode, codec, corpus, bind, in_memory):
    loaded, own = in_memory(Copying(), codec), dict(mode=mode, lengths=(260,))
    rows = recall.evaluate(loaded, bind(Recall(**GRID | own)), Context(corpus=corpus))
    assert len(rows) == 9 and (rows["recall_nats"] / -rows["logp_without"]).min() > 0.8
    chosen = choice.evaluate(loaded, bind(Choice(**GRID | own)), Context(corpus=corpus))
    assert len(chosen) == 9 and chosen["right"].eq(100).all()
    for found, column in ((rows, "logp_with"), (chosen, "logp")):
        first = found[found["sample"] == 0]  # in others some three tokens stand more than once, and go on differently
        assert first[column].tolist() == pytest.approx((first["num_tokens"] * math.log(0.9)).tolist())


def test_ties_are_not_right(codec, corpus, bind, in_memory):
    rows = choice.evaluate(in_memory(Uniform(), codec), bind(Choice(**GRID)), Context(corpus=corpus))
    assert rows["right"].eq(0).all()
    assert rows["logp"].tolist() == pytest.approx((-math.log(512) * rows["num_tokens"]).tolist())


def test_recall_equals_plain_log_probabilities(codec, corpus, bind, in_memory):
    model, seen = llama(), []
    watch = lambda module, args, kwargs: seen.extend(kwargs["input_ids"].tolist())  # noqa: E731
    hook = model.register_forward_pre_hook(watch, with_kwargs=True)
    rows = recall.evaluate(in_memory(model, codec), bind(Recall(**GRID)), Context(corpus=corpus))
    hook.remove()
    assert len(seen) == 2 * 3 * (3 + 1)  # what stands without the needle is scored once for all depths
    texts = [codec.decode(ids).rstrip("!") for ids in seen]  # "!" is token 0, the padding
    for row in rows.to_dict("records"):
        fact = FACTS[row["sample"]]
        query, answer = fact.query, codec.encode(f" {fact.expected}")
        places = [text.split(query)[0] for text in texts if query in text]
        places = [place for place in places if len(codec.encode(place)) == row["length"] - 80]
        with_it = [place for place in places if fact.needle in place]
        assert (len(with_it), len(places)) == (3, 4)
        plain = {place: logp(model, [codec.bos_id, *codec.encode(place + query)], answer) for place in places}
        assert any(row["logp_with"] == pytest.approx(plain[place], rel=1e-5) for place in with_it)
        (without,) = set(places) - set(with_it)
        assert row["logp_without"] == pytest.approx(plain[without], rel=1e-5)
        assert row["recall_nats"] == pytest.approx(row["logp_with"] - row["logp_without"])
        assert row["num_tokens"] == len(answer)


def test_choices_equal_plain_log_probabilities(codec, corpus, bind, in_memory):
    model, spec = llama(), bind(Choice(**GRID | dict(lengths=(260, 330))))
    rows = choice.evaluate(in_memory(model, codec), spec, Context(corpus=corpus))
    needles = choice.needles(codec, 2 * 3 * 3)
    cells = choice.CellBuilder(codec, spec, Context(corpus=corpus)).cells_of_ids([wording for wording, _ in needles])
    for cell, (wording, words), row in zip(cells, needles, rows.to_dict("records"), strict=True):
        assert (cell.length, cell.depth, cell.sample) == (row["length"], row["depth"], row["sample"])
        hidden, _, query = codec.decode(cell.prompt).rpartition(wording.query)
        assert query == "" and wording.needle in hidden
        assert len(cell.prompt) == 1 + (cell.length - 80) + len(codec.encode(wording.query))
        plain = [logp(model, cell.prompt, word) for word in words]
        assert (row["logp"], row["logp_others"]) == pytest.approx((plain[0], max(plain[1:])), rel=1e-5)
        assert row["right"] == 100 * (plain[0] > max(plain[1:]))


def test_ten_words_of_one_length_are_offered_and_any_may_be_true(codec):
    drawn = choice.needles(codec, 200)
    for wording, words in drawn:
        assert len(words) == OFFERED == len({tuple(word) for word in words}) and len({len(word) for word in words}) == 1
        assert codec.decode(words[0]).strip() + "." == wording.expected and wording.expected not in wording.query
    assert len({wording.question for wording, _ in drawn}) == len(Choices.read().holders)
    assert len({wording.expected for wording, _ in drawn[:18]}) > 3, "every place draws its own word"
    favourite = drawn[0][1][0]  # a model that takes one word for the likeliest, whatever the text says, is right in 10%
    offered = [words for _, words in drawn if favourite in words]
    assert np.mean([words[0] == favourite for words in offered]) == pytest.approx(0.1, abs=0.12)


def test_words_that_differ_in_their_last_token_take_one_pass(codec, corpus, bind):
    builder = choice.CellBuilder(codec, bind(Choice(**GRID | dict(lengths=(330,)))), Context(corpus=corpus))
    cell = next(builder.cells_of_ids([choice.needles(codec, 1)[0][0]]))
    passes = choice.passes_of(cell, [[1, 2], [3, 4], [1, 5], [3, 6]])
    assert list(passes.values()) == [{0: [1, 2], 2: [1, 5]}, {1: [3, 4], 3: [3, 6]}]
    logits = torch.zeros(2, 8)
    logits[0, 1], logits[1, 5] = 1.0, 2.0
    first, second = 1 - math.log(math.e + 7), 2 - math.log(math.e**2 + 7)
    found = choice.log_probabilities(passes[f"{cell.key}/0"], logits)
    assert found == pytest.approx([first + second - 2, first + second])
    few = replace(Choices.read(), words=[*(f"w{n}" for n in range(9)), *(f"word{n}" for n in range(10))])
    assert set(choice._alike(TextCodec(parse_tokenizer("bytes").load()), few, "abbot")) == set(range(9, 19)), "ten or more"


def test_what_does_not_fit_is_refused(make_spec, codec, corpus, bind, in_memory):
    for measure, spec in ((recall, Recall(**GRID | dict(lengths=(300,)))), (choice, Choice(**GRID | dict(lengths=(300,))))):
        spec.check(make_spec(), None)
        with pytest.raises(ValueError, match="raise the reserve"):
            replace(spec, reserve=20).check(make_spec(), None)
        with pytest.raises(ValueError, match="plan it again"):
            measure.evaluate(in_memory(llama(), codec), replace(bind(spec), wording="0123"), Context(corpus=corpus))
